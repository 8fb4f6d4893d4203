// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

func onDevice(cmd *cobra.Command, change func(ctx context.Context, ns *netns.Namespace, device string) error,
) *cobra.Command {
	var host string
	cmd.Flags().StringVar(&host, "netns", "", "name or path of the host's network namespace (default: this one)")
	cmd.Args = cli.Arguments("DEVICE")
	cmd.RunE = cli.AsRoot(func(ctx context.Context, args []string) error {
		return cli.WithNamespace(host, func(ns *netns.Namespace) error { return change(ctx, ns, args[0]) })
	})
	return cmd
}

func (c commands) uplinkAdd() *cobra.Command {
	return onDevice(&cobra.Command{
		Use:   "add DEVICE [--netns PATH]",
		Short: "Serve clients whose packets come in through a device of the host",
		Long: `Attach the programs to a device of the host that leads outside. Clients behind it then
reach services at frontends that are addresses of the host, and at other frontends that
are routed to the host. All other packets pass unchanged. Packets to backends on other
nodes come from the host's address on the device that leads there, which must be an
uplink too. Run it again after the host's addresses change.`,
		Example: `  mustang uplink add eth0
  mustang uplink add wire --netns=/var/run/netns/host`,
	}, func(ctx context.Context, ns *netns.Namespace, device string) error {
		if _, err := datapath.FindUplink(ns, device); err != nil {
			return err // before anything is pinned
		}
		return c.OnDatapath(ctx, func(d *datapath.Datapath) error {
			change, err := d.Uplinks().Put(ctx, ns, device)
			if err != nil {
				return err
			}
			return c.Printf("uplink %s %s\n", device, change)
		})
	})
}

func (c commands) uplinkRemove() *cobra.Command {
	return onDevice(&cobra.Command{
		Use:   "rm DEVICE [--netns PATH]",
		Short: "Detach the programs from a device of the host",
		Long: `Detach the programs from a device of the host. Replies of connections that came in
through it are no longer translated. Programs of devices that are gone are deleted.`,
		Example: "  mustang uplink rm eth0",
	}, func(ctx context.Context, ns *netns.Namespace, device string) error {
		return c.OnExisting(ctx, fmt.Errorf("uplink %q does not exist", device), func(d *datapath.Datapath) error {
			u, err := datapath.FindUplink(ns, device)
			if errors.Is(err, os.ErrNotExist) {
				return errors.Join(err, d.Uplinks().Sweep(ctx))
			} else if err != nil {
				return err
			}
			err = d.Uplinks().Delete(ctx, u)
			if errors.Is(err, os.ErrNotExist) {
				return &datapath.NotFoundError{What: fmt.Sprintf("uplink %q in network namespace %q", device, ns.Name())}
			}
			return err
		})
	})
}

// uplinkJSON is an uplink. Names that cannot be found are empty.
type uplinkJSON struct {
	Device  string `json:"device"`
	IfIndex int    `json:"ifindex"`
	Netns   string `json:"netns"`
	Cookie  uint64 `json:"netns_cookie"`
	// Addresses are the host's sources for calls to backends on other nodes: at most one of each family.
	Addresses []netip.Addr `json:"addresses"`
}

func (c commands) uplinkList() *cobra.Command {
	return cli.ListCommand(c.Config, &cobra.Command{
		Use: "ls", Short: "List uplinks",
		Long: `List uplinks. ADDRESSES are those from which the host calls backends on other nodes, for
clients outside: one of each family.`,
	}, cli.Table[uplinkJSON]{
		Key:    "uplinks",
		Header: []string{"DEVICE", "IFINDEX", "NETNS", "ADDRESSES"},
		Row:    func(u uplinkJSON) []any { return []any{u.Device, u.IfIndex, u.Netns, u.Addresses} },
	}, listUplinks)
}

func listUplinks(ctx context.Context, d *datapath.Datapath) (list []uplinkJSON, err error) {
	uplinks, err := d.Uplinks().List(ctx)
	if err != nil || len(uplinks) == 0 {
		return nil, err
	}
	err = byCookie(func(hosts map[uint64]*netns.Namespace) error {
		for _, u := range uplinks {
			item := uplinkJSON{IfIndex: u.IfIndex, Cookie: u.Host}
			if item.Addresses, err = d.Uplinks().Source(u); err != nil {
				return err
			}
			if ns := hosts[u.Host]; ns != nil {
				item.Netns = ns.Name()
				if device, err := rtnl.In(ns).DeviceByIndex(u.IfIndex); err == nil {
					item.Device = device.Name
				}
			}
			list = append(list, item)
		}
		return nil
	})
	return list, err
}
