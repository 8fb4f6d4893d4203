// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/spf13/cobra"

	"mustang/internal/datapath"
)

func (c *config) ep() *cobra.Command {
	return group("ep", "Endpoints: pods whose traffic the eBPF programs handle", c.epAdd(), c.epList(), c.epRemove())
}

func (c *config) epAdd() *cobra.Command {
	var device podDevice
	cmd := &cobra.Command{
		Use:   "add --netns PATH [--ifname NAME]",
		Short: "Attach the programs to a pod's device and register its addresses",
		Long: `Attach the programs to a pod's device: on the host's side where the link has one
(veth, netkit, tap, tun), otherwise on the device itself (macvlan, ipvlan, Open
vSwitch), with links that are pinned on the host. The device's addresses become
endpoints, to which traffic is delivered directly.

Flags supply what the kernel does not know: the host's device of a tap or tun
(--host-ifname), and the bridge that pods on Open vSwitch share (--segment). A VM has
no namespace on this machine, so it needs --address and --mac.`,
		Example: `  mustang ep add --ifname=eth0 --netns=/var/run/netns/pod-a
  mustang ep add --netns=/var/run/netns/pod-a --segment=br0
  mustang ep add --host-ifname=tap0 --address=192.168.10.20 --mac=52:54:00:00:00:01`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := device.check(); err != nil {
				return usage(err)
			}
			if err := requireRoot(cmd); err != nil {
				return err
			}
			return device.with(func(a datapath.EndpointSpec) error { return c.addEndpoint(cmd.Context(), a) })
		},
	}
	device.addFlags(cmd)
	device.addLinkFlags(cmd)
	return cmd
}

// addEndpoint makes a device an endpoint and says so.
func (c *config) addEndpoint(ctx context.Context, a datapath.EndpointSpec) error {
	if err := a.Check(); err != nil {
		return err // before anything is pinned
	}
	d, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer d.Close()
	endpoints, change, err := d.Endpoints().Put(ctx, a)
	if err != nil {
		return err
	}
	for _, e := range endpoints {
		if _, err := fmt.Fprintf(c.stdout, "endpoint %d %s %s\n", e.ID, e.IP, change); err != nil {
			return err
		}
	}
	return nil
}

func (c *config) epRemove() *cobra.Command {
	var device podDevice
	cmd := &cobra.Command{
		Use:   "rm ID | IP | --netns PATH [--ifname NAME]",
		Short: "Detach the programs from a pod's device and unregister its addresses",
		Example: `  mustang ep rm 1
  mustang ep rm 192.168.10.10
  mustang ep rm --ifname=eth0 --netns=/var/run/netns/pod-a`,
		Args: arguments("[ID | IP]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 0) == (device.netns == "") {
				return usage(errors.New("name the endpoint by its ID, an IP, or --netns"))
			}
			remove, err := device.removal(args)
			if err != nil {
				return err
			}
			if err := requireRoot(cmd); err != nil {
				return err
			}
			return c.onExisting(cmd.Context(), errors.New("there are no endpoints"), func(d *datapath.Datapath) error {
				return remove(cmd.Context(), d)
			})
		},
	}
	device.addFlags(cmd)
	return cmd
}

// removal returns what ep rm is to do.
func (p *podDevice) removal(args []string) (func(context.Context, *datapath.Datapath) error, error) {
	if len(args) == 0 {
		return func(ctx context.Context, d *datapath.Datapath) error {
			return p.with(func(a datapath.EndpointSpec) error { return d.Endpoints().DeleteDevice(ctx, a) })
		}, nil
	}
	if ip, err := netip.ParseAddr(args[0]); err == nil {
		return func(ctx context.Context, d *datapath.Datapath) error { return d.Endpoints().DeleteIP(ctx, ip) }, nil
	}
	id, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return nil, usage(fmt.Errorf("endpoint %q: want an ID or an IP address", args[0]))
	}
	return func(ctx context.Context, d *datapath.Datapath) error { return d.Endpoints().Delete(ctx, uint32(id)) }, nil
}

// endpointJSON is an endpoint as ep ls -o json prints it.
type endpointJSON struct {
	ID      uint32 `json:"id"`
	IP      string `json:"ip"`
	Host    bool   `json:"host"`
	IfIndex int    `json:"ifindex"`
	PodMAC  string `json:"pod_mac"`
	NodeMAC string `json:"node_mac"`
}

func (c *config) epList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List endpoints",
		Long: `List endpoints. If HOST is true, the programs are on the host's device, whose index is
IFINDEX. Otherwise they are on the pod's own device.`,
	}
	return listing(cmd, func(format string) error {
		endpoints, err := read(c, func(d *datapath.Datapath) ([]datapath.Endpoint, error) { return d.Endpoints().List(cmd.Context()) })
		if err != nil {
			return err
		}
		return c.printEndpoints(endpoints, format)
	})
}

func (c *config) printEndpoints(endpoints []datapath.Endpoint, format string) error {
	list := []endpointJSON{}
	var rows [][]string
	for _, e := range endpoints {
		item := endpointJSON{
			ID: e.ID, IP: e.IP.String(), Host: e.Host, IfIndex: e.IfIndex, PodMAC: mac(e.PodMAC), NodeMAC: mac(e.NodeMAC),
		}
		list = append(list, item)
		rows = append(rows, []string{
			strconv.FormatUint(uint64(item.ID), 10), item.IP, strconv.FormatBool(item.Host), strconv.Itoa(item.IfIndex),
			cmp.Or(item.PodMAC, "-"), cmp.Or(item.NodeMAC, "-"),
		})
	}
	if format == "json" {
		return printJSON(c.stdout, struct {
			Schema    int            `json:"schema"`
			Endpoints []endpointJSON `json:"endpoints"`
		}{schema, list})
	}
	return printTable(c.stdout, []string{"ID", "IP", "HOST", "IFINDEX", "POD MAC", "NODE MAC"}, rows)
}

// mac returns an address as text, empty when it is none.
func mac(a net.HardwareAddr) string {
	for _, b := range a {
		if b != 0 {
			return a.String()
		}
	}
	return ""
}
