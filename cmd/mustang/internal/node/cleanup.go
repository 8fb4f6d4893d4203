// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/agent/status"
	"mustang/internal/cni"
	"mustang/internal/cni/install"
	"mustang/internal/cni/record"
	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/nodenet"
)

const retryPause = 2 * time.Second

type cleanup struct {
	*cli.Config
	all, force, stay        bool
	namespace, dir, healthz string
	place                   install.Place
	stateDir, runDir        string // of the plugin
}

// AddNodeNamespace adds the flag of the node's network namespace.
func AddNodeNamespace(flags *pflag.FlagSet, to *string) {
	flags.StringVar(to, "netns", "/proc/self/ns/net", "network namespace of the node, a name or `path`")
}

// AgentCleanup returns the command agent cleanup.
func AgentCleanup(c *cli.Config) *cobra.Command {
	o := cleanup{Config: c, place: install.Place{ConfName: install.DefaultConfName}}
	cmd := &cobra.Command{
		Use: "cleanup",
		Short: "Remove the routes, the tunnel's device and the firewall's table that agents have made on this node; --all: " +
			"all of Mustang",
		Long: `Remove what connects the pods of this node with pods of other nodes: the routes of protocol 109, the device
mst-vxlan or mst-wg with its key, and the nftables table mustang-agent. The node goes on to forward packets. End
the agent first. Services and policies stay, and so does the CNI plugin.

With --all, also remove the CNI configuration and plugins, the plugin's records, devices, addresses and
masquerading, and the eBPF programs and maps. This program and files of other projects stay. While
pods are attached, --all is refused, since only the plugin can detach them: drain the node first, or
set --force. If the command failed or was killed, repeat it.`,
		Example: "  mustang agent cleanup\n  mustang agent cleanup --all",
		PreRunE: cli.Check(func([]string) error {
			switch {
			case !o.all && (o.force || o.stay):
				return errors.New("--force and --stay are for --all")
			case o.healthz != "" && !o.stay:
				return errors.New("--healthz-address is for --stay")
			}
			return o.place.Check()
		}),
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			o.stateDir, o.runDir = cmp.Or(c.Getenv("MUSTANG_CNI_STATE_DIR"), cni.DefaultStateDir),
				cmp.Or(c.Getenv("MUSTANG_CNI_RUN_DIR"), cni.DefaultRunDir)
			// It is opened before anything is removed: a wrong name changes nothing.
			return cli.WithNamespace(o.namespace, func(ns *netns.Namespace) error {
				if o.stay {
					return o.untilDone(ctx, ns)
				}
				return o.run(ctx, ns)
			})
		}),
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.all, "all", false, "remove all of Mustang from this node")
	flags.BoolVar(&o.force, "force", false,
		"with --all, also while pods are attached: they lose their services and policies, and stay until their runtime "+
			"deletes them")
	flags.BoolVar(&o.stay, "stay", false,
		"with --all, try again until all is removed, then wait for a signal, as a container of a DaemonSet has to")
	flags.StringVar(&o.healthz, "healthz-address", "",
		"with --stay, `address` and port that answer at /livez, and at /readyz once all is removed; empty: none")
	flags.StringVar(&o.place.ConfDir, "cni-conf-dir", install.DefaultConfDir, "`directory` with the CNI configuration")
	flags.StringVar(&o.place.BinDir, "cni-bin-dir", install.DefaultBinDir, "`directory` with the CNI plugins")
	AddNodeNamespace(flags, &o.namespace)
	AddRunDir(flags, &o.dir)
	return cmd
}

// untilDone removes all, tries again after a failure, answers probes, and waits for a signal.
func (o cleanup) untilDone(ctx context.Context, ns *netns.Namespace) error {
	var done atomic.Bool
	all, ctx := errgroup.WithContext(ctx)
	if o.healthz != "" {
		probes := http.NewServeMux()
		probes.HandleFunc("/livez", func(http.ResponseWriter, *http.Request) {})
		probes.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
			if !done.Load() {
				http.Error(w, "not all is removed yet", http.StatusServiceUnavailable)
			}
		})
		all.Go(func() error { return status.Serve(ctx, o.healthz, probes) })
	}
	all.Go(func() error {
		printed := ""
		for err := o.run(ctx, ns); err != nil; err = o.run(ctx, ns) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if printed != err.Error() {
				printed = err.Error()
				fmt.Fprintf(o.Stderr, "mustang: %s; trying again every %s\n", printed, retryPause)
			}
			select {
			case <-time.After(retryPause):
			case <-ctx.Done():
			}
		}
		done.Store(true)
		err := o.Printf("done: waiting for a signal\n")
		<-ctx.Done()
		return err
	})
	return all.Wait()
}

func (o cleanup) run(ctx context.Context, ns *netns.Namespace) error {
	if _, err := status.Ask(ctx, o.dir, "/metrics", 16<<20); !errors.Is(err, status.ErrNoAgent) {
		return fmt.Errorf("the agent would undo the removal: end it first (its socket is in %s)", o.dir)
	}
	network := func() error { return o.removeNetwork(ctx, ns) }
	if !o.all {
		return network()
	}
	attached, err := Attached(o.runDir)
	if err != nil {
		return err
	}
	if len(attached) > 0 && !o.force {
		return fmt.Errorf("pods are attached, %d in all (%s): drain the node first, or --force", len(attached),
			cli.FirstOf(attached, 3))
	}
	err = errors.Join(o.uninstall(ctx), o.step("routes, tunnel and firewall table", network),
		o.step("programs, services and policies", func() error { return datapath.Remove(ctx, o.BPFRoot) }))
	if err != nil || len(attached) > 0 {
		return err
	}
	plugin := cni.Plugin{RunDir: o.runDir}
	err = o.step("addresses, devices and masquerading of networks of pods",
		func() error { return plugin.RemoveNetworks(ns) })
	if err != nil {
		return err
	}
	return o.step("records and reserved addresses", func() error {
		_ = os.Remove(filepath.Join(o.dir, "agent")) // of the agent's socket for the plugin; others may have files there
		return errors.Join(os.RemoveAll(o.runDir), os.RemoveAll(o.stateDir))
	})
}

// Attached names the pods in the plugin's records in runDir, except pods whose network namespace is gone.
func Attached(runDir string) (pods []string, err error) {
	records, err := record.Store{Root: runDir}.List("")
	records = slices.DeleteFunc(records, IsGone) // behind another plugin, they were deleted without ours
	return cli.Convert(records, func(r record.Record) string {
		return cmp.Or(r.Pod, fmt.Sprint(r.Owner, " at ", r.Addresses))
	}), err
}

// IsGone reports whether the network namespace of a pod no longer exists; false for a path that is not visible here.
func IsGone(r record.Record) bool {
	pod, err := netns.Open(r.Netns)
	if err != nil {
		_, dir := os.Lstat(filepath.Dir(r.Netns))
		return r.Netns != "" && dir == nil && errors.Is(err, fs.ErrNotExist)
	}
	defer pod.Close()
	cookie, err := pod.Cookie()
	return err == nil && r.Cookie != 0 && cookie != r.Cookie
}

// removeNetwork removes the ways of programs to other nodes too, if there is a datapath of this layout.
func (o cleanup) removeNetwork(ctx context.Context, ns *netns.Namespace) error {
	options := nodenet.Options{Host: ns}
	d, err := datapath.OpenExisting(datapath.Options{Root: o.BPFRoot})
	switch {
	case err == nil:
		defer func() { _ = d.Close() }()
		options.Remotes = Remotes(ctx, d)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, objects.ErrNoBPFFS),
		o.all && errors.As(err, new(*objects.LayoutError)):
		err = nil // no programs, or all are removed
	}
	if gone := os.Remove(filepath.Join(o.dir, nodenet.KeyFile)); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return errors.Join(err, nodenet.New(options).Remove())
}

// Remotes returns a function that gives programs the ways to pods of other nodes.
func Remotes(ctx context.Context, d *datapath.Datapath) func([]nodenet.Remote) error {
	return func(ways []nodenet.Remote) error {
		rows := cli.Convert(ways, func(w nodenet.Remote) datapath.Remote { return datapath.Remote(w) })
		_, err := d.Remotes().Apply(ctx, rows)
		return err
	}
}

// uninstall removes the configuration first, so that the runtime starts no pod that nothing serves.
func (o cleanup) uninstall(ctx context.Context) error {
	self, _ := os.Executable()
	keep, _ := install.FindPlugin(self) // a missing one needs not be kept
	changes, err := o.place.Uninstall(ctx, keep)
	for _, c := range changes {
		err = errors.Join(err, o.Printf("%s\n", c))
	}
	return err
}

func (o cleanup) step(what string, do func() error) error {
	if err := do(); err != nil {
		return fmt.Errorf("remove %s: %w", what, err)
	}
	return o.Printf("%s removed\n", what)
}
