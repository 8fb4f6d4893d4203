// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/cmd/mustang/internal/node"
	"mustang/internal/lab"
)

func (c *config) describeLab(info lab.Info, places []string) error {
	fmt.Fprintf(c.Stdout, "lab %s is up: %s\n\n", info.Name, strings.Join(places, ", "))
	var rows [][]any
	for _, place := range append(slices.Clone(places), info.ServiceNames()...) {
		if addresses := info.Addresses(place); len(addresses) > 0 {
			rows = append(rows, []any{place, strings.Trim(fmt.Sprint(addresses), "[]")})
		}
	}
	if err := cli.PrintTable(c.Stdout, []string{"PLACE", "ADDRESSES"}, rows); err != nil {
		return err
	}
	exec := "  mustang lab exec "
	if info.Name != info.Topology {
		exec += "--lab " + info.Name + " "
	}
	fmt.Fprintf(c.Stdout, "\nNext:\n%s%s  # a shell there\n", exec, places[len(places)-1])
	option := func(port uint16) string {
		if port == lab.ServicePort {
			return ""
		}
		return fmt.Sprintf(" -p %d", port)
	}
	if try, ok := info.Trial(); ok {
		fmt.Fprintf(c.Stdout, "%s%s -- iperf3 -s -D%s  # behind the service, at port %d\n", exec, try.Server.Pod,
			option(try.Server.Port), try.Server.Port)
		fmt.Fprintf(c.Stdout, "%s%s -- iperf3 -c %s%s\n", exec, try.Client, try.Service, option(try.Port))
	} else if slices.Contains(places, lab.PodA) && slices.Contains(places, lab.PodB) {
		fmt.Fprintf(c.Stdout, "%s%s -- iperf3 -s -D\n%s%s -- iperf3 -c %s\n", exec, lab.PodA, exec, lab.PodB, lab.PodA)
	}
	_, err := fmt.Fprintf(c.Stdout, "  mustang lab down %s\n", info.Name)
	return err
}

func (c *config) labExec() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "exec [--lab NAME] PLACE [-- COMMAND [ARGUMENT...]]",
		Short: "Run a command in a lab, or a shell",
		Long: `Run a command in the network namespace of a place in a lab, such as host or pod-a; a shell
($SHELL) if none is given. The command sees the files and processes of this machine. Its /etc/hosts also has
the names of the lab's places, and "service", the address of the service. $` + cli.EnvBPFRoot + ` and
$` + node.EnvSaved + ` name the lab's maps and saved services, so that mustang svc and mustang ep act on
the lab. The exit code is the command's.`,
		Example: `  mustang lab exec pod-a
  mustang lab exec pod-a -- iperf3 -s -D -1
  mustang lab exec pod-b -- iperf3 -c service`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 && args[1] == "--" {
				args = slices.Delete(args, 1, 2)
			}
			if len(args) == 0 {
				return cli.Usage(errors.New("want a place, and a command unless it is a shell: mustang lab exec pod-a -- COMMAND"))
			}
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			if len(args) == 1 {
				args = append(args, cmp.Or(c.Getenv("SHELL"), "/bin/sh"))
			}
			return c.execIn(name, args[0], args[1:])
		},
	}
	cmd.Flags().StringVar(&name, "lab", "", "name of the lab (default: the only one)")
	cmd.Flags().SetInterspersed(false)
	cmd.ValidArgsFunction = cli.Word(func() (places []string) {
		if info, err := c.store().Find(name); err == nil {
			places = c.store().Places(info)
		}
		return places
	})
	cli.CompleteFlag(cmd, "lab", c.labNames)
	return cmd
}

// execIn replaces this program by a command in a place of a lab, or of the only one if the name is empty.
func (c *config) execIn(name, place string, command []string) error {
	store := c.store()
	info, err := c.findLab(name)
	if name == "" && errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("no place %s: %w", place, err)
	}
	if err != nil {
		return err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	ns, err := store.Enter(info, place)
	if err != nil {
		return err
	}
	if err := store.Join(info); err != nil {
		return err
	}
	err = errors.Join(os.Setenv(cli.EnvBPFRoot, store.BPFRoot(info, place)),
		os.Setenv(cli.EnvLab, info.Name), os.Setenv(node.EnvSaved, store.SavedServices(info, place)))
	if err != nil {
		return err
	}
	// The new program keeps the namespaces of the thread that executes it.
	err = ns.Do(func() error {
		if err := addHosts(info.Hosts(store.Places(info))); err != nil {
			return fmt.Errorf("names in %s: %w", hostsFile, err)
		}
		return unix.Exec(path, command, os.Environ())
	})
	return fmt.Errorf("run %s: %w", path, err)
}

const hostsFile = "/etc/hosts"

// addHosts gives the calling thread a mount namespace in which hostsFile has lines before its own.
func addHosts(lines string) error {
	own, err := os.ReadFile(hostsFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	file, err := os.CreateTemp("", "mustang-hosts-")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // the mount keeps it
	_, err = file.WriteString(lines + string(own))
	if err := errors.Join(err, file.Chmod(0o644), file.Close()); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	return unix.Mount(file.Name(), hostsFile, "", unix.MS_BIND, "")
}
