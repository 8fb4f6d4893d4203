// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/lab"
	"mustang/internal/lab/labfile"
	"mustang/internal/podlink"
	"mustang/internal/qdisc"
)

// rootStore returns the store for a command that needs root, after the labs of dead processes were removed.
func (c *config) rootStore(cmd *cobra.Command) (lab.Store, error) {
	return c.store(), cmp.Or(cli.RequireRoot(cmd), c.reapErr)
}

// findLab returns a lab, or the only one if the name is empty.
func (c *config) findLab(name string) (lab.Info, error) {
	if c.reapErr != nil {
		return lab.Info{}, c.reapErr
	}
	return c.store().Find(name)
}

func (c *config) labUp() *cobra.Command {
	var o lab.Options
	var flags labFlags
	cmd := &cobra.Command{
		Use:   "up {TOPOLOGY | -f FILE}",
		Short: "Build a lab, which exists until lab down removes it",
		Long: `Build a lab, which exists until lab down removes it:

` + topologies() + `
The service of pod-links is 10.96.0.100:5201 (and [fd00:96::100]:5201). On the wire
host-a is 10.0.0.1 (and fd00:1::1), host-b 10.0.0.2 (and fd00:1::2). In docker host-a
publishes port 5201 of container-a, 172.17.0.2, as 6201. Only pod-to-network leads
out of this machine. It does not change the device that it shares.

A FILE in YAML describes a lab of any hosts, wires, pods and services; docs/labs.md has its form.`,
		Example: `  mustang lab up pod-links --link veth --datapath ebpf
  mustang lab up pod-links --link ipvlan-l2 --via ebpf-socket
  mustang lab up pod-links --link bridge --datapath kernel --via nftables --netfilter-call
  mustang lab up pod-links --service-port 80,443
  mustang lab up two-hosts --link bridge --overlay vxlan
  mustang lab up pod-to-host --link veth --nat --wire-rate 1gbit
  mustang lab up pod-to-network --link macvlan --uplink eth1 --uplink-addresses 10.0.0.50/24,10.0.0.51/24
  mustang lab up docker
  mustang lab up -f docs/two-racks.yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case flags.file == "":
				return cli.Arguments("TOPOLOGY")(cmd, args)
			case len(args) > 0:
				return cli.Usage(fmt.Errorf("%s and -f %s: want a topology or a file", args[0], flags.file))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if flags.file != "" {
				err = c.readLab(cmd, flags.file, &o)
			} else {
				o.Topology = args[0]
				err = cli.Usage(flags.apply(&o, cmd.Flags().Changed))
			}
			if err != nil {
				return err
			}
			store, err := c.rootStore(cmd)
			if err != nil {
				return err
			}
			l, err := store.Up(cmd.Context(), o)
			if taken := (*lab.NameError)(nil); errors.As(err, &taken) {
				err = fmt.Errorf("%w: remove it by \"mustang lab down %s\", or choose another --name", err, o.Name)
			}
			if err != nil {
				return err
			}
			if err := l.Keep(); err != nil {
				return errors.Join(err, l.Close())
			}
			info, places := lab.Info{Options: l.Options}, l.Places()
			if o.File != nil {
				places = store.Places(info)
			}
			return errors.Join(c.describeLab(info, places), l.Close())
		},
	}
	flags.add(cmd, &o)
	cmd.ValidArgsFunction = cli.Word(func() []string {
		if cmd.Flags().Changed("file") {
			return nil
		}
		return cli.Convert(lab.Topologies(), func(t lab.Topology) string { return t.Name })
	})
	_ = cmd.MarkFlagFilename("file", "yaml", "yml") // it has the flag
	cli.CompleteFlag(cmd, "link", cli.Fixed(append(linkNames(), lab.LinkHost, lab.LinkHostBridge)...))
	cli.CompleteFlag(cmd, "datapath", cli.Fixed(lab.DatapathKernel, lab.DatapathEBPF))
	cli.CompleteFlag(cmd, "via", cli.Fixed(lab.ViaNone, lab.ViaIPTables, lab.ViaNFTables, lab.ViaIPVS, lab.ViaEBPFTC,
		lab.ViaEBPFSocket))
	cli.CompleteFlag(cmd, "overlay", cli.Fixed(overlays...))
	return cmd
}

type labFlags struct {
	file  string
	ports []uint
}

func (f *labFlags) add(cmd *cobra.Command, o *lab.Options) {
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "file", "f", "", "`FILE` that describes the lab; - is standard input")
	flags.StringVar(&o.Name, "name", "", "name of the lab (default: the topology's, or that in the file)")
	flags.StringVar(&o.Link, "link", "veth", "link mode: "+strings.Join(linkNames(), ", ")+
		";\nwith two hosts also host and host-bridge (no pods)")
	flags.StringVar(&o.Datapath, "datapath", lab.DatapathEBPF, "kernel or ebpf (with two hosts the default is kernel)")
	flags.StringVar(&o.Via, "via", "",
		"implementation of the service: none, iptables, nftables, ipvs, ebpf-socket with --datapath kernel (default "+
			"iptables);\nebpf-tc, ebpf-socket with ebpf (default ebpf-tc)")
	flags.BoolVar(&o.NetfilterCall, "netfilter-call", false,
		"pass bridged packets through the host's firewall rules (link bridge)")
	flags.BoolVar(&o.Offload, "offload", false, "carry batches of segments instead of packets (links tap and tun)")
	flags.BoolVar(&o.BigTCP, "big-tcp", false,
		"let TCP packets of up to 256 KiB cross the pods' links (not links tap, tun and ovs-internal)")
	flags.BoolVar(&o.Sockmap, "sockmap", false,
		"pass the data of TCP sockets past devices and policies, for comparison (--datapath kernel --via none)")
	flags.StringVar(&o.Overlay, "overlay", lab.OverlayNone, "join the pods of two hosts: "+strings.Join(overlays, ", "))
	flags.BoolVar(&o.NAT, "nat", false, "masquerade packets of pods that leave their host (two hosts)")
	flags.Var(cli.One(&o.WireRate, qdisc.ParseRate, ""), "wire-rate",
		"rate of the wire between two hosts, such as 10gbit (default: no limit)")
	addUplink(flags, &o.Uplink, "topology pod-to-network")
	flags.UintSliceVar(&f.ports, "service-port", nil,
		fmt.Sprintf("port of the service beside %d, also a port of pod-a (topology pod-links; repeatable)", lab.ServicePort))
	flags.DurationVar(&o.WireDelay, "wire-delay", 0, "delay of the wire between two hosts in each direction, such as 1ms")
}

// apply sets the options of a topology from the flags, and its defaults where a flag is not set.
func (f labFlags) apply(o *lab.Options, isSet func(flag string) bool) error {
	o.Name = cmp.Or(o.Name, o.Topology)
	for _, topology := range lab.Topologies() {
		if topology.Name == o.Topology && !isSet("link") {
			o.Link = topology.Link
		}
	}
	ofKernel := []string{lab.ViaNone, lab.ViaIPTables, lab.ViaNFTables, lab.ViaIPVS}
	switch service := o.Topology == lab.TopologyPodLinks; {
	case service && o.Datapath == lab.DatapathKernel && o.Via == "":
		o.Via = lab.ViaIPTables
	case !isSet("datapath") && (!service || slices.Contains(ofKernel, o.Via)):
		o.Datapath = lab.DatapathKernel // the only one that has these, and the default without a service
	}
	if len(f.ports) > len(o.Ports) {
		return fmt.Errorf("--service-port: %d are named, at most %d can be", len(f.ports), len(o.Ports))
	}
	for i, port := range f.ports {
		if port == 0 || port > math.MaxUint16 {
			return fmt.Errorf("--service-port %d: want 1 to 65535", port)
		}
		o.Ports[i] = uint16(port)
	}
	return checkUplink(o.Uplink)
}

func topologies() string {
	var text strings.Builder
	for _, topology := range lab.Topologies() {
		fmt.Fprintf(&text, "  %-14s %s\n", topology.Name, topology.Doc)
	}
	return text.String()
}

func linkNames() []string { return cli.Convert(podlink.Modes(), podlink.Mode.Name) }

func (c *config) labList() *cobra.Command {
	return cli.Listing(&cobra.Command{Use: "ls", Short: "List labs"}, func(format string) error {
		infos, err := c.store().List()
		if err = cmp.Or(c.reapErr, err); err != nil {
			return err
		}
		return cli.PrintList(c.Stdout, format, infos, cli.Table[lab.Info]{
			Key:    "labs",
			Header: []string{"NAME", "TOPOLOGY", "LINK", "DATAPATH", "VIA", "PLACES", "CREATED"},
			Row: func(i lab.Info) []any {
				created := i.Created.Local().Format(time.DateTime)
				return []any{i.Name, i.Topology, i.Link, i.Datapath, i.Via, c.store().Places(i), created}
			},
		})
	})
}

func (c *config) labDown() *cobra.Command {
	return &cobra.Command{
		Use:   "down [NAME]",
		Short: "Remove a lab with all processes in it",
		Args:  cli.Arguments("[NAME]"),

		ValidArgsFunction: cli.Word(c.labNames),
		RunE: cli.AsRoot(func(_ context.Context, args []string) error {
			info, err := c.findLab(append(args, "")[0])
			if err == nil {
				err = c.store().Down(info.Name)
			}
			if err == nil {
				_, err = fmt.Fprintf(c.Stdout, "lab %s removed\n", info.Name)
			}
			return err
		}),
	}
}

// readLab sets the options of a lab that a file describes. What describes a topology is refused beside it.
func (c *config) readLab(cmd *cobra.Command, path string, o *lab.Options) (err error) {
	cmd.LocalNonPersistentFlags().VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && flag.Name != "file" && flag.Name != "name" && err == nil {
			err = cli.Usage(fmt.Errorf("--%s and -f %s: the file describes all of the lab but its name", flag.Name, path))
		}
	})
	if err != nil {
		return err
	}
	o.File, err = cli.ReadInput(cmd.Context(), c.Environment, path, func(in io.Reader) (*labfile.Lab, error) {
		file, err := labfile.Read(in, cli.InputName(path))
		return file, cli.Usage(err)
	})
	if err == nil {
		*o = lab.Options{Name: cmp.Or(o.Name, o.File.Name), File: o.File}
	}
	return err
}

func addUplink(f *pflag.FlagSet, u *lab.UplinkDevice, use string) {
	f.StringVar(&u.Name, "uplink", "", "device of this machine; pods join its network ("+use+")")
	parse := func(text string) (_ lab.UplinkDevice, err error) {
		host, pod, _ := strings.Cut(text, ",")
		if u.Host, err = netip.ParsePrefix(host); err == nil {
			u.Pod, err = netip.ParsePrefix(pod)
		}
		return *u, err
	}
	f.Var(cli.One(u, parse, "two with their network's prefix length, such as 10.0.0.50/24,10.0.0.51/24"),
		"uplink-addresses",
		"two free addresses of that network, for the lab's host and its pod, such as 10.0.0.50/24,10.0.0.51/24")
}

func checkUplink(u lab.UplinkDevice) error {
	if (u.Name != "") != u.Host.IsValid() {
		return errors.New("--uplink and --uplink-addresses go together")
	}
	return nil
}

var overlays = []string{lab.OverlayNone, lab.OverlayVXLAN, lab.OverlayBridgedVeth, lab.OverlayBridgedInternal}

func (c *config) labNames() []string {
	infos, _ := c.store().List()
	return cli.Convert(infos, func(i lab.Info) string { return i.Name })
}
