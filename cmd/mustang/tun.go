// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"mustang/internal/nl"
	"mustang/internal/tun"
)

func (c *config) tun() *cobra.Command {
	var flags tunFlags
	cmd := &cobra.Command{
		Use:   "tun",
		Short: "Work with a TUN device in user space: show its packets, answer them, join two devices",
		Long: `Opens a TUN device (without packet information) and prints a line for each packet
that is routed to it: seconds since the start, in or out, length, family,
addresses with ports, protocol, ICMP type or TCP flags. The device, its addresses
and its routes are gone when the command ends, however it ends. A persistent
device of the name is opened as it is, and stays.

With --echo it answers ICMP echo, UDP and TCP on every port, at every address that
is routed to the device, and prints the answers too. With --switch it carries
packets between two devices and prints none. With --stats it prints a line per
second instead. "NAME ready" on stderr says that a device is there and served.

With --offload the kernel hands over, and takes, packets of up to 64 KiB. They are
printed and counted as they are on a wire, after the cut.`,
		Example: `  mustang tun --ifname tun0 --address 172.21.22.23/24
  mustang tun --address 172.21.22.23/24 --address fd00:21::1/64 --echo --offload
  mustang tun --switch --offload --ifname left@pod-a --ifname right@pod-b --address 10.9.0.1/24@left --address 10.9.0.2/24@right`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags.mtuGiven = cmd.Flags().Changed("mtu")
			specs, err := flags.parse()
			if err != nil {
				return usage(err)
			}
			if err := requireRoot(cmd); err != nil {
				return err
			}
			return c.runTUN(cmd.Context(), flags, specs)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&flags.ifnames, "ifname", nil,
		"device, as NAME or NAME@NETNS (a name below "+nl.Directory+", or a path); twice with --switch (default: the first free tunN)")
	f.StringArrayVar(&flags.addresses, "address", nil,
		"address of the device with its prefix length; with --switch as PREFIX@IFNAME (repeatable)")
	f.IntVar(&flags.mtu, "mtu", 0, "MTU in bytes (default: 1500 for a new device)")
	f.BoolVar(&flags.offload, "offload", false, "take and hand over packets of up to 64 KiB")
	f.BoolVar(&flags.tap, "tap", false, "TAP devices, which carry Ethernet frames, instead of TUN devices")
	f.BoolVar(&flags.stats, "stats", false, "print rates each second, not packets")
	f.BoolVar(&flags.echo, "echo", false, "answer ICMP echo, UDP and TCP")
	f.BoolVar(&flags.join, "switch", false, "carry packets between two devices")
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
	// What comes from here on waits in the devices' queues until it is read.
	for _, device := range devices {
		fmt.Fprintf(c.stderr, "%s ready\n", device.Name())
	}
	return c.serveTUN(ctx, flags, specs, devices)
}

// open opens the device in its namespace.
func (s tunSpec) open() (*tun.Device, error) {
	open := nl.CurrentNamespace
	if s.netns != "" {
		open = func() (*nl.Namespace, error) { return nl.OpenNamespace(s.netns) }
	}
	ns, err := open()
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return tun.Open(ns, s.options)
}

// serveTUN does what the flags ask for until ctx ends, which is no error.
//
//revive:disable-next-line:argument-limit // the receiver's streams, and what was opened how
func (c *config) serveTUN(ctx context.Context, flags tunFlags, specs []tunSpec, devices []*tun.Device) error {
	group, ctx := errgroup.WithContext(ctx)
	printer := newTUNPrinter(c.stdout, flags.tap)
	watch := printer.packet
	if flags.stats {
		watch = func(tun.Direction, []byte) {}
		group.Go(func() error { return printer.rates(ctx, specs, devices) })
	} else {
		group.Go(func() error { return printer.wait(ctx) })
	}
	group.Go(func() error {
		switch {
		case flags.join:
			return tun.Switch(ctx, devices[0], devices[1])
		case flags.echo:
			return tun.Echo(ctx, devices[0], watch)
		}
		return devices[0].Each(ctx, func(batch *tun.Batch) error {
			for i := range batch.Len() {
				watch(tun.In, batch.Packet(i))
			}
			return nil
		})
	})
	return group.Wait()
}
