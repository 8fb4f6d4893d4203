// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/netns"
	"mustang/internal/tun"
)

func (c *config) tun() *cobra.Command {
	var flags tunFlags
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
	var specs []tunSpec
	cmd.PreRunE = cli.Check(func([]string) (err error) {
		flags.mtuSet = cmd.Flags().Changed("mtu")
		specs, err = flags.parse()
		return err
	})
	cmd.RunE = cli.AsRoot(func(ctx context.Context, _ []string) error { return c.runTUN(ctx, flags, specs) })
	f := cmd.Flags()
	f.StringArrayVar(&flags.ifnames, "ifname", nil,
		"device, as NAME or NAME@NETNS (a name below "+netns.Directory+
			", or a path); twice with --switch (default: the first free tunN)")
	f.StringArrayVar(&flags.addresses, "address", nil,
		"address of the device with its prefix length; with --switch as PREFIX@IFNAME (repeatable)")
	f.IntVar(&flags.mtu, "mtu", 0, "MTU in bytes (default: 1500 for a new device)")
	f.BoolVar(&flags.offload, "offload", false, "use packets of up to 64 KiB")
	f.BoolVar(&flags.tap, "tap", false, "TAP devices (Ethernet frames) instead of TUN devices")
	f.BoolVar(&flags.stats, "stats", false, "print rates each second, not packets")
	f.BoolVar(&flags.echo, "echo", false, "answer ICMP echo, UDP and TCP")
	f.BoolVar(&flags.forward, "switch", false, "forward packets between two devices")
	return cmd
}

// runTUN opens the devices and serves them until ctx ends.
func (c *config) runTUN(ctx context.Context, flags tunFlags, specs []tunSpec) (err error) {
	var devices []*tun.Device
	defer func() {
		for _, device := range devices {
			err = errors.Join(err, device.Close())
		}
	}()
	for _, spec := range specs {
		device, err := spec.open()
		if err != nil {
			return err
		}
		devices = append(devices, device)
	}
	if len(flags.ifnames) == 0 {
		fmt.Fprintf(c.Stderr, "mustang: %s is in this network namespace until the command ends\n", devices[0].Name())
	}
	// Packets from here on wait in the queues of the devices until they are read.
	for _, device := range devices {
		fmt.Fprintf(c.Stderr, "%s ready\n", device.Name())
	}
	return c.serveTUN(ctx, flags, specs, devices)
}

// tunFlows returns the two directions of a device, or between two devices.
func tunFlows(specs []tunSpec, devices []*tun.Device) []tun.Flow {
	if len(devices) == 1 {
		return devices[0].Flows()
	}
	return []tun.Flow{
		devices[0].ReadFlow(specs[0].flag + " > " + specs[1].flag),
		devices[1].ReadFlow(specs[1].flag + " > " + specs[0].flag),
	}
}

// open opens the device in its namespace.
func (s tunSpec) open() (*tun.Device, error) {
	ns, err := cli.OpenNamespace(s.netns)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return tun.Open(ns, s.options)
}

// serveTUN prints, answers or forwards packets until ctx ends, which is no error.
func (c *config) serveTUN(ctx context.Context, flags tunFlags, specs []tunSpec, devices []*tun.Device) error {
	group, ctx := errgroup.WithContext(ctx)
	printer := tun.NewPrinter(c.Stdout, specs[0].options.Kind)
	watch := printer.Packet
	if flags.stats {
		watch = func(tun.Direction, []byte) error { return nil }
		group.Go(func() error { return printer.Rates(ctx, tunFlows(specs, devices)) })
	}
	group.Go(func() error {
		switch {
		case flags.forward:
			return tun.Switch(ctx, devices[0], devices[1])
		case flags.echo:
			return tun.Echo(ctx, devices[0], watch)
		}
		return devices[0].Each(ctx, func(batch *tun.Batch) error {
			for i := range batch.Len() {
				if err := watch(tun.In, batch.Packet(i)); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return group.Wait()
}

// tunFlags are the flags of mustang tun.
type tunFlags struct {
	ifnames, addresses                 []string
	mtu                                int
	mtuSet                             bool
	offload, tap, stats, echo, forward bool
}

// tunSpec is a device to open.
type tunSpec struct {
	flag    string // the value of --ifname
	netns   string // the name or path of its namespace; empty for that of this process
	options tun.Options
}

// parse returns the devices to open, or an error for invalid flags.
func (f tunFlags) parse() (specs []tunSpec, err error) {
	if err := f.checkCombination(); err != nil {
		return nil, err
	}
	options := tun.Options{Kind: tun.TUN, MTU: f.mtu, Offload: f.offload}
	if f.tap {
		options.Kind = tun.TAP
	}
	if len(f.ifnames) == 0 {
		specs = []tunSpec{{options: options}}
	}
	for _, ifname := range f.ifnames {
		name, ns, in := strings.Cut(ifname, "@")
		if err := tun.CheckName(name); err != nil {
			return nil, fmt.Errorf("--ifname %s: %w", ifname, err)
		}
		if in && (ns == "" || ns == "." || ns == "..") {
			return nil, fmt.Errorf("--ifname %s: invalid network namespace %q", ifname, ns)
		}
		options.Name = name
		specs = append(specs, tunSpec{flag: ifname, netns: ns, options: options})
	}
	if len(specs) == 2 && specs[0].netns == specs[1].netns && specs[0].options.Name == specs[1].options.Name {
		return nil, fmt.Errorf("--ifname %s: given twice", f.ifnames[1])
	}
	for _, address := range f.addresses {
		if err := assignAddress(specs, address); err != nil {
			return nil, fmt.Errorf("--address %s: %w", address, err)
		}
	}
	for _, spec := range specs {
		if err := spec.options.Check(); err != nil {
			return nil, err
		}
	}
	return specs, nil
}

// checkCombination returns an error for flags that exclude each other.
func (f tunFlags) checkCombination() error {
	switch {
	case f.forward && f.echo:
		return errors.New("--switch and --echo exclude each other")
	case f.forward && len(f.ifnames) != 2:
		return fmt.Errorf("--switch: want --ifname twice, not %d times", len(f.ifnames))
	case !f.forward && len(f.ifnames) > 1:
		return fmt.Errorf("--ifname %s: want one device without --switch", f.ifnames[1])
	case f.tap && f.echo:
		return errors.New("--tap and --echo: only TUN devices can echo")
	case f.tap && f.offload && !f.forward:
		return errors.New("--tap and --offload: only with --switch")
	case f.mtuSet && f.mtu == 0:
		return fmt.Errorf("--mtu 0: want %d to %d", tun.MinMTU, tun.MaxMTU)
	}
	return nil
}

// assignAddress adds an address, PREFIX or PREFIX@IFNAME, to its device.
func assignAddress(specs []tunSpec, address string) error {
	text, owner, named := strings.Cut(address, "@")
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return errors.New("want an address with its prefix length, such as 10.9.0.1/24")
	}
	if !named && len(specs) > 1 {
		return fmt.Errorf("which device? want %s@IFNAME", text)
	}
	var owners []int
	for i, spec := range specs {
		if !named || owner == spec.flag || owner == spec.options.Name {
			owners = append(owners, i)
		}
	}
	switch len(owners) {
	case 0:
		return fmt.Errorf("no --ifname %s", owner)
	case 1:
		spec := &specs[owners[0]]
		spec.options.Addresses = append(spec.options.Addresses, prefix)
		return nil
	}
	return fmt.Errorf("both devices have that name; want %s@IFNAME@NETNS", text)
}
