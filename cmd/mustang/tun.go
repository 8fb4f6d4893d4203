// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/netns"
	"mustang/internal/tun"
)

func (c *config) tun() *cobra.Command {
	var o tunOptions
	cmd := &cobra.Command{
		Use:   "tun",
		Short: "Print or answer the packets of a TUN device, or connect two devices, in user space",
		Long: `Open a TUN device (without packet information) and print a line for each packet that is routed to
it: seconds since the start, direction, length, family, addresses with ports, protocol, ICMP type or
TCP flags. The kernel deletes the device when the command ends. An existing persistent device of that
name is opened, and kept. "NAME ready" on stderr reports that a device is open.

With --echo it answers ICMP echo, UDP and TCP, on all ports of all addresses that are routed to the
device. With --switch it forwards packets between two devices and prints none. With --stats it prints
a line per second instead. With --offload packets have up to 64 KiB; their segments are counted.`,
		Example: `  mustang tun --ifname tun0 --address 172.21.22.23/24
  mustang tun --address 172.21.22.23/24 --address fd00:21::1/64 --echo --offload
  mustang tun --switch --offload --ifname left@pod-a --ifname right@pod-b --address 10.9.0.1/24@left --address 10.9.0.2/24@right`,
	}
	cmd.PreRunE = cli.Check(func([]string) error { return o.parse(cmd.Flags().Changed("mtu")) })
	cmd.RunE = cli.AsRoot(func(ctx context.Context, _ []string) error { return c.runTUN(ctx, o) })
	f := cmd.Flags()
	f.StringArrayVar(&o.ifnames, "ifname", nil,
		"device, as NAME or NAME@NETNS (a name below "+netns.Directory+
			", or a path); twice with --switch (default: the first free tunN)")
	f.StringArrayVar(&o.addresses, "address", nil,
		"address of the device with its prefix length; with --switch as PREFIX@IFNAME (repeatable)")
	f.IntVar(&o.mtu, "mtu", 0, "MTU in bytes (default: 1500 for a new device)")
	f.BoolVar(&o.offload, "offload", false, "use packets of up to 64 KiB")
	f.BoolVar(&o.tap, "tap", false, "TAP devices (Ethernet frames) instead of TUN devices")
	f.BoolVar(&o.stats, "stats", false, "print rates each second, not packets")
	f.BoolVar(&o.echo, "echo", false, "answer ICMP echo, UDP and TCP")
	f.BoolVar(&o.forward, "switch", false, "forward packets between two devices")
	return cmd
}

type tunOptions struct {
	ifnames, addresses                 []string
	mtu                                int
	offload, tap, stats, echo, forward bool
	devices                            []tunSpec
}

type tunSpec struct {
	tun.Options
	flag  string // the value of --ifname
	netns string // the name or path of its namespace; empty: the current one
}

func (o *tunOptions) parse(mtuSet bool) error {
	switch {
	case len(o.ifnames)+len(o.addresses) == 0:
		return errors.New("name a device by --ifname, or its address by --address")
	case o.forward && o.echo:
		return errors.New("--switch and --echo exclude each other")
	case o.forward && len(o.ifnames) != 2:
		return fmt.Errorf("--switch: want --ifname twice, not %d times", len(o.ifnames))
	case !o.forward && len(o.ifnames) > 1:
		return fmt.Errorf("--ifname %s: want one device without --switch", o.ifnames[1])
	case o.tap && o.echo:
		return errors.New("--tap and --echo: only TUN devices can echo")
	case o.tap && o.offload && !o.forward:
		return errors.New("--tap and --offload: only with --switch")
	case mtuSet && o.mtu == 0:
		return fmt.Errorf("--mtu 0: want %d to %d", tun.MinMTU, tun.MaxMTU)
	}
	options := tun.Options{Kind: tun.TUN, MTU: o.mtu, Offload: o.offload}
	if o.tap {
		options.Kind = tun.TAP
	}
	if len(o.ifnames) == 0 {
		o.devices = []tunSpec{{Options: options}}
	}
	for _, ifname := range o.ifnames {
		name, ns, in := strings.Cut(ifname, "@")
		if err := tun.CheckName(name); err != nil {
			return fmt.Errorf("--ifname %s: %w", ifname, err)
		}
		if in && (ns == "" || ns == "." || ns == "..") {
			return fmt.Errorf("--ifname %s: invalid network namespace %q", ifname, ns)
		}
		if slices.ContainsFunc(o.devices, func(d tunSpec) bool { return d.netns == ns && d.Name == name }) {
			return fmt.Errorf("--ifname %s: given twice", ifname)
		}
		options.Name = name
		o.devices = append(o.devices, tunSpec{options, ifname, ns})
	}
	for _, address := range o.addresses {
		if err := o.assign(address); err != nil {
			return fmt.Errorf("--address %s: %w", address, err)
		}
	}
	for _, d := range o.devices {
		if err := d.Check(); err != nil {
			return err
		}
	}
	return nil
}

func (o *tunOptions) assign(address string) error {
	text, owner, named := strings.Cut(address, "@")
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return errors.New("want an address with its prefix length, such as 10.9.0.1/24")
	}
	var device *tunSpec
	for i := range o.devices {
		if d := &o.devices[i]; !named || owner == d.flag || owner == d.Name {
			if device != nil {
				return fmt.Errorf("two devices: want %[1]s@IFNAME or %[1]s@IFNAME@NETNS", text)
			}
			device = d
		}
	}
	if device == nil {
		return fmt.Errorf("no --ifname %s", owner)
	}
	device.Addresses = append(device.Addresses, prefix)
	return nil
}

// runTUN opens the devices, and prints, answers or forwards packets until ctx ends.
func (c *config) runTUN(ctx context.Context, o tunOptions) (err error) {
	var devices []*tun.Device
	defer func() {
		for _, device := range devices {
			err = errors.Join(err, device.Close())
		}
	}()
	for _, d := range o.devices {
		err := cli.WithNamespace(d.netns, func(ns *netns.Namespace) error {
			device, err := tun.Open(ns, d.Options)
			if err == nil {
				devices = append(devices, device)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if len(o.ifnames) == 0 {
		fmt.Fprintf(c.Stderr, "mustang: %s is in this network namespace until the command ends\n", devices[0].Name())
	}
	// Packets from here on wait in the queues of the devices until they are read.
	for _, device := range devices {
		fmt.Fprintf(c.Stderr, "%s ready\n", device.Name())
	}
	group, ctx := errgroup.WithContext(ctx)
	printer := tun.NewPrinter(c.Stdout, o.devices[0].Kind)
	watch := printer.Packet
	if o.stats {
		flows := devices[0].Flows()
		if o.forward {
			flows = []tun.Flow{
				devices[0].ReadFlow(o.ifnames[0] + " > " + o.ifnames[1]),
				devices[1].ReadFlow(o.ifnames[1] + " > " + o.ifnames[0]),
			}
		}
		watch = func(tun.Direction, []byte) error { return nil }
		group.Go(func() error { return printer.Rates(ctx, flows) })
	}
	group.Go(func() error {
		switch {
		case o.forward:
			return tun.Switch(ctx, devices[0], devices[1])
		case o.echo:
			return tun.Echo(ctx, devices[0], watch)
		}
		return devices[0].Each(ctx, func(packet []byte) error { return watch(tun.In, packet) })
	})
	return group.Wait()
}
