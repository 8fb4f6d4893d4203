// SPDX-License-Identifier: Apache-2.0

// Package node implements the commands about the state of a node: services, datapath, agent.
package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/service"
)

// Commands returns the commands svc, ep, uplink, socket, conntrack, status, counters, datapath and reset.
func Commands(config *cli.Config) []*cobra.Command {
	c := commands{config}
	return []*cobra.Command{
		cli.Group("svc", "Services: addresses that stand for a set of backends", c.svcAdd(), c.svcList(), c.svcRemove(),
			c.svcApply(), c.svcDiff(), c.svcExport(), c.svcRestore(), c.svcHealth()),
		cli.Group("ep", "Endpoints: pods with traffic handled by the eBPF programs", c.epAdd(), c.epList(), c.epRemove()),
		cli.Group("uplink", "Uplinks: devices of the host through which clients outside reach services",
			c.uplinkAdd(), c.uplinkList(), c.uplinkRemove()),
		cli.Group("socket", "Socket translation: services for processes, at connect instead of at each packet",
			c.socketAttach(), c.socketList(), c.socketDetach()),
		cli.Group("conntrack", "Connections through services, and those that policies allow",
			c.conntrackList(), c.conntrackFlush(), c.conntrackStats(), c.conntrackTimeouts()),
		c.status(), c.counters(),
		cli.Group("datapath", "The eBPF programs and maps of this host", c.unload("unload"), c.upgrade()),
		c.unload("reset"),
	}
}

// unload returns the command under a name; reset is its short form.
func (c commands) unload(name string) *cobra.Command {
	other := map[string]string{"unload": "mustang reset", "reset": "mustang datapath unload"}[name]
	var force bool
	cmd := &cobra.Command{
		Use:   name,
		Short: "Detach all programs, and delete all services, endpoints and policies",
		Long: `Detach all programs from pods, uplinks and control groups, and delete all maps: services, endpoints,
network policies and connections, also of another version of Mustang. Print how many were deleted.
Connections through a service end, and pods are reached as if there were no policies. If the node's
agent wrote services, the command is refused without --force: use mustang agent cleanup --all.
Labs are not touched. ` + other + ` does the same.`,
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			had, ofAgent, err := c.contents(ctx)
			if err != nil {
				return err
			}
			if ofAgent > 0 && !force {
				return fmt.Errorf("%s of this node's agent: to remove Mustang from the node, end the agent and run mustang "+
					"agent cleanup --all; --force deletes the services, "+
					"and pods lack services and policies until you recreate the pods", count(ofAgent, "service is", "services are"))
			}
			if err := datapath.Remove(ctx, c.BPFRoot); err != nil {
				return err
			}
			return c.Printf("%s\n", had)
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "delete what the node's agent has written too")
	return cmd
}

// contents describes what unload deletes, and counts services of the node's agent. It fails if root is unfit for maps.
func (c commands) contents(ctx context.Context) (text string, ofAgent int, err error) {
	text = "nothing was loaded"
	err = c.Existing(nil, func(d *datapath.Datapath) error {
		services, servicesErr := d.Services().List(ctx)
		endpoints, endpointsErr := d.Endpoints().List(ctx)
		policies, policiesErr := d.Policies().List()
		for _, s := range services {
			if s.Owner == service.Agent {
				ofAgent++
			}
		}
		pods := slices.CompactFunc(endpoints, func(a, b datapath.Endpoint) bool { return a.ID == b.ID }) // sorted by ID
		text = fmt.Sprintf("deleted: %s, %s, %s", count(len(services), "service", "services"),
			count(len(pods), "endpoint", "endpoints"), count(len(policies), "network policy", "network policies"))
		return errors.Join(servicesErr, endpointsErr, policiesErr)
	})
	switch {
	case errors.Is(err, objects.ErrNoBPFFS) && c.BPFRoot != objects.DefaultRoot:
		return "", 0, err
	case err != nil && !errors.Is(err, objects.ErrNoBPFFS): // none is mounted after the boot
		text = "deleted: maps that this program cannot read"
	}
	return text, ofAgent, nil
}

func count(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}

func (c commands) upgrade() *cobra.Command {
	return &cobra.Command{
		Use:   "upgrade",
		Short: "Replace the programs of another build by this one's, and keep all connections",
		Long: `Replace the programs of another build of Mustang with this build's, while packets flow:
services, endpoints and connections stay. The next command that adds something does so too.
Devices of the host that were made after pods on the same parent get the source guard. Maps of
another layout are refused: mustang reset deletes them.`,
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			none := fmt.Errorf("nothing to upgrade: %s lacks maps", c.BPFRoot)
			return c.OnExisting(ctx, none, func(d *datapath.Datapath) error {
				change, err := d.Upgrade(ctx)
				if err != nil {
					return err
				}
				return c.Printf("%s: layout %d, %s\n", c.BPFRoot, objects.LayoutVersion, change)
			})
		}),
	}
}
