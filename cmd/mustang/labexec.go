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

// describeLab prints the places of a lab with their addresses, and the commands that come next.
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
	option := ""
	if info.Name != info.Topology {
		option = "--lab " + info.Name + " "
	}
	last := places[len(places)-1]
	fmt.Fprintf(c.Stdout, "\nNext:\n  mustang lab exec %s%s  # a shell there\n", option, last)
	if try, ok := info.Trial(); ok {
		server, client := "", ""
		if try.Server.Port != lab.ServicePort {
			server = fmt.Sprintf(" -p %d", try.Server.Port)
		}
		if try.Port != lab.ServicePort {
			client = fmt.Sprintf(" -p %d", try.Port)
		}
		fmt.Fprintf(c.Stdout,
			"  mustang lab exec %[1]s%[2]s -- iperf3 -s -D%[3]s  # behind the service, at port %[4]d\n  mustang lab exec "+
				"%[1]s%[5]s -- iperf3 -c %[6]s%[7]s\n",
			option, try.Server.Pod, server, try.Server.Port, try.Client, try.Service, client)
	}
	if _, ok := info.Trial(); !ok && slices.Contains(places, lab.PodA) && slices.Contains(places, lab.PodB) {
		fmt.Fprintf(c.Stdout, "  mustang lab exec %s%s -- ping -c 3 %s\n", option, lab.PodA, lab.PodB)
	}
	_, err := fmt.Fprintf(c.Stdout, "  mustang lab down %s\n", info.Name)
	return err
}

// labExec is the command that runs another one in a place of a lab.
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
			if len(args) < 1 {
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
	cmd.ValidArgsFunction = cli.Word(func() []string { return c.labPlaces(name) })
	cli.CompleteFlag(cmd, "lab", c.labNames)
	return cmd
}

// execIn replaces this program by a command in a place of a lab, or of the only one if the name is empty.
func (c *config) execIn(name, place string, command []string) error {
	store, info, err := c.findLab(name)
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
	root := store.BPFRoot(info, place)
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, cli.EnvBPFRoot+"=") || strings.HasPrefix(entry, node.EnvSaved+"=")
	})
	env = append(env, cli.EnvBPFRoot+"="+root, node.EnvSaved+"="+store.SavedServices(info, place))
	// The new program keeps the namespaces of the thread that executes it.
	err = ns.Do(func() error {
		if err := addHosts(info.Hosts(store.Places(info))); err != nil {
			return fmt.Errorf("names in %s: %w", hostsFile, err)
		}
		return unix.Exec(path, command, env)
	})
	return fmt.Errorf("run %s: %w", path, err)
}

// hostsFile maps names to addresses.
const hostsFile = "/etc/hosts"

// addHosts gives the calling thread a mount namespace in which hostsFile has lines before its own. Submounts of the
// machine that are shared stay shared.
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
