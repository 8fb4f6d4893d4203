// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/podlink"
	"mustang/internal/policy"
	"mustang/internal/service"
)

func (c commands) epAdd() *cobra.Command {
	var device podDevice
	cmd := &cobra.Command{
		Use:   "add --netns PATH [--ifname NAME]",
		Short: "Attach the programs to a pod's device and register its addresses",
		Long: `Attach the programs to a pod's device, with links that are pinned on the host: to the host's side
of veth, netkit, tap and tun, else to the device itself. The device's addresses become endpoints, to
which traffic is delivered directly. A VM needs --host-ifname, --address and --mac.

What the pod sends must have one of its addresses and its MAC address; all else is dropped and
counted. Routers, and pods that share addresses, take --allowed-address. --namespace, --pod and
--label identify the pod for network policies.

Of an existing endpoint, only the given flags change. --label replaces all labels, and --address all
addresses. Root of a pod chooses the addresses of its device: for an untrusted pod give --address,
the first time too.`,
		Example: `  mustang ep add --ifname=eth0 --netns=/var/run/netns/pod-a
  mustang ep add --netns=/var/run/netns/pod-a --segment=br0
  mustang ep add --netns=pod-a --namespace=shop --label=app=web
  mustang ep add --netns=pod-a --address=192.168.10.10 --address=fd00:10::a
  mustang ep add --netns=/var/run/netns/pod-a --allowed-address=192.168.10.200
  mustang ep add --host-ifname=tap0 --address=192.168.10.20 --mac=52:54:00:00:00:01`,
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			return device.with(func(a datapath.EndpointSpec) error {
				put := func(d *datapath.Datapath) error { return c.putEndpoint(ctx, d, a) }
				err := a.Check() // before anything is pinned
				switch {
				case errors.Is(err, datapath.ErrNoAddress): // an existing endpoint has addresses
					return c.OnExisting(ctx, err, put)
				case err != nil:
					return err
				}
				return c.OnDatapath(ctx, put)
			})
		}),
	}
	cmd.PreRunE = cli.Check(func([]string) error { return device.check(cmd) })
	device.addFlags(cmd)
	device.addMoreFlags(cmd)
	return cmd
}

func (c commands) putEndpoint(ctx context.Context, d *datapath.Datapath, a datapath.EndpointSpec) error {
	endpoints, change, err := d.Endpoints().Put(ctx, a)
	if err != nil {
		return err
	}
	for _, e := range endpoints {
		if err := c.Printf("endpoint %d %s %s\n", e.ID, e.IP, change); err != nil {
			return err
		}
	}
	if !a.Given.Labels || a.Pod == nil || len(endpoints) == 0 {
		return nil
	}
	pods, err := knownPods(d) // labels of a Pod object override the flags
	if pod, found := pods[endpoints[0].IP]; found && err == nil && !maps.Equal(pod.Labels, a.Pod.Labels) {
		fmt.Fprintf(c.Stderr, "mustang: --label is ignored: the Pod object %s/%s decides the labels, %s\n", pod.Namespace,
			pod.Name, cmp.Or(cli.Labels(pod.Labels), "none"))
	}
	return err
}

func (c commands) epRemove() *cobra.Command {
	var device podDevice
	var ip netip.Addr
	var id uint64
	cmd := &cobra.Command{
		Use:   "rm ID | IP | --netns PATH [--ifname NAME]",
		Short: "Detach the programs from a pod's device and unregister its addresses",
		Example: `  mustang ep rm 1
  mustang ep rm 192.168.10.10
  mustang ep rm --ifname=eth0 --netns=/var/run/netns/pod-a`,
		Args: cli.Arguments("[ID | IP]"),
		PreRunE: cli.Check(func(args []string) (err error) {
			switch {
			case (len(args) == 0) == (device.netns == ""):
				return errors.New("name the endpoint by its ID, an IP, or --netns")
			case len(args) == 0:
				return nil
			}
			if ip, err = netip.ParseAddr(args[0]); err != nil {
				id, err = strconv.ParseUint(args[0], 10, 32)
			}
			if err != nil {
				return fmt.Errorf("endpoint %q: want an ID or an IP address (mustang ep ls)", args[0])
			}
			return nil
		}),
		RunE: cli.AsRoot(func(ctx context.Context, args []string) error {
			return c.OnExisting(ctx, errors.New("there are no endpoints"), func(d *datapath.Datapath) (err error) {
				switch {
				case ip.IsValid():
					err = d.Endpoints().DeleteIP(ctx, ip)
				case device.netns == "":
					err = d.Endpoints().Delete(ctx, uint32(id))
				default:
					err = device.with(func(a datapath.EndpointSpec) error { return d.Endpoints().DeleteDevice(ctx, a) })
				}
				if err != nil {
					return err
				}
				return c.Printf("endpoint removed: %s\n", cmp.Or(strings.Join(args, ""), device.netns))
			})
		}),
	}
	device.addFlags(cmd)
	return cmd
}

type endpointJSON struct {
	ID        uint32            `json:"id"`
	IP        netip.Addr        `json:"ip"`
	Host      bool              `json:"host"`
	IfIndex   int               `json:"ifindex"`
	Link      string            `json:"link"`
	Mode      string            `json:"mode"`
	Device    string            `json:"device"`
	Netns     string            `json:"netns"`
	Guard     string            `json:"guard"`
	PodMAC    string            `json:"pod_mac"`
	NodeMAC   string            `json:"node_mac"`
	Allowed   []netip.Prefix    `json:"allowed"` // source addresses of the pod other than its own
	Namespace string            `json:"namespace"`
	Pod       string            `json:"pod"`
	Labels    map[string]string `json:"labels"`

	sent, received datapath.Traffic // of the device
}

func listEndpoints(ctx context.Context, d *datapath.Datapath) (list []endpointJSON, err error) {
	endpoints, err := d.Endpoints().List(ctx)
	if err == nil {
		err = d.Endpoints().Describe(endpoints)
	}
	if err != nil {
		return nil, err
	}
	pods, err := knownPods(d)
	for _, e := range endpoints {
		pod := pods[e.IP]
		list = append(list, endpointJSON{
			ID: e.ID, IP: e.IP, Host: e.Host, IfIndex: e.IfIndex, Link: e.Kind, Device: e.Device, Netns: e.Netns,
			Mode:  podlink.ModeOf(podlink.Seen{Kind: e.Kind, Master: e.Master, Layer3: e.Layer3, Ethernet: e.Ethernet}),
			Guard: map[bool]string{true: "on", false: "off"}[e.Guarded], PodMAC: mac(e.PodMAC), NodeMAC: mac(e.NodeMAC),
			Allowed: append([]netip.Prefix{}, e.Allowed...), Namespace: pod.Namespace, Pod: pod.Name,
			Labels: maps.Collect(maps.All(pod.Labels)), sent: e.Sent, received: e.Received,
		})
	}
	return list, err
}

func knownPods(d *datapath.Datapath) (map[netip.Addr]policy.Pod, error) {
	s, err := d.Policies().Snapshot()
	pods := map[netip.Addr]policy.Pod{}
	for _, p := range s.Pods {
		for _, a := range p.Addresses {
			pods[a.Unmap()] = p
		}
	}
	return pods, err
}

func (c commands) epList() *cobra.Command {
	return cli.ListCommand(c.Config, &cobra.Command{
		Use:   "ls",
		Short: "List endpoints",
		Long: `List endpoints, a line for each address of a pod. LINK is the pod's link mode, DEVICE the device
with the programs, NETNS the pod's network namespace. GUARD shows whether the source guard is on.
Network policies match NAMESPACE, POD and LABELS; an endpoint without a name is called "endpoint-ID".
-o wide also has MAC addresses, and in ALLOWED further source addresses of the pod.`,
	}, cli.Table[endpointJSON]{
		Key: "endpoints",
		Header: []string{"ID", "IP", "LINK", "DEVICE", "NETNS", "GUARD", "POD MAC", "NODE MAC", "ALLOWED", "NAMESPACE", "POD",
			"LABELS"},
		Wide: []string{"POD MAC", "NODE MAC", "ALLOWED"},
		Row: func(e endpointJSON) []any {
			return []any{e.ID, e.IP, e.Mode, e.Device, e.Netns, e.Guard, e.PodMAC, e.NodeMAC, prefixes(e.Allowed), e.Namespace,
				e.Pod, cli.Labels(e.Labels)}
		},
	}, listEndpoints)
}

func prefixes(all []netip.Prefix) string {
	words := texts(all)
	for i, p := range all {
		if p.IsSingleIP() {
			words[i] = p.Addr().String()
		}
	}
	return strings.Join(words, ",")
}

// mac returns an address as text; "": none.
func mac(a net.HardwareAddr) string {
	if strings.Trim(a.String(), "0:") == "" {
		return ""
	}
	return a.String()
}

type podDevice struct {
	datapath.EndpointSpec
	netns, hostNetns, guard string
	pod                     policy.Pod
}

func (p *podDevice) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&p.IfName, "ifname", "eth0", "name of the device in the pod")
	flags.StringVar(&p.netns, "netns", "",
		"name or path of the pod's network namespace, such as pod-a or /proc/1234/ns/net")
	flags.StringVar(&p.hostNetns, "host-netns", "",
		"name or path of the network namespace that the pod is plugged into (default: this one)")
}

// addMoreFlags adds flags for what the kernel does not report, and for the pod's identity in network policies.
func (p *podDevice) addMoreFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&p.HostIfName, "host-ifname", "", "the host's device of a tap or tun")
	flags.StringVar(&p.Segment, "segment", "", "the bridge of Open vSwitch that the pod is on")
	flags.Var(cli.Each(&p.Addresses, parsePodAddress, ""), "address",
		"address of the pod, instead of its device's; of a VM behind --host-ifname (repeatable)")
	flags.Var(cli.Each(&p.Allowed, parseAllowed, ""), "allowed-address",
		"further address or prefix that the pod may use: of a router, or one that moves between pods (repeatable; empty: "+
			"none)")
	flags.Var(cli.OneOf(&p.guard, "on", "off"), "source-guard",
		"drop what the pod sends from addresses that are not its own: on or off")
	flags.Var(cli.One(&p.MAC, parseMAC, "six bytes, such as 52:54:00:00:00:01"), "mac",
		"MAC address of a VM behind --host-ifname")
	flags.StringToStringVar(&p.pod.Labels, "label", nil,
		"label of the pod, as in app=web, which network policies select (repeatable)")
	flags.StringVar(&p.pod.Namespace, "namespace", "", "namespace of the pod for network policies (default \"default\")")
	flags.StringVar(&p.pod.Name, "pod", "", "name of the pod for network policies")
}

func parsePodAddress(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return addr, errors.New("want an IP address")
	}
	if a := addr.Unmap(); a.Zone() != "" || !a.IsGlobalUnicast() {
		return addr, errors.New("other pods could not send to it")
	}
	return addr, nil
}

func parseAllowed(text string) (prefix netip.Prefix, err error) {
	if text == "" { // none
		return prefix, nil
	}
	if addr, addrErr := netip.ParseAddr(text); addrErr == nil && addr.Zone() == "" {
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	} else if prefix, err = netip.ParsePrefix(text); err != nil {
		return prefix, errors.New("want an IP address or a prefix")
	}
	return prefix, datapath.CheckAllowed(prefix)
}

func parseMAC(text string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(text)
	if err == nil && len(mac) != 6 {
		err = errors.New("not of Ethernet")
	}
	return mac, err
}

func (p *podDevice) check(cmd *cobra.Command) error {
	set := cmd.Flags().Changed
	p.Given = &datapath.Given{
		Addresses: set("address"), Allowed: set("allowed-address"), Guard: set("source-guard"),
		Namespace: set("namespace"), Name: set("pod"), Labels: set("label"),
	}
	p.Unguarded = p.guard == "off"
	p.Allowed = slices.DeleteFunc(p.Allowed, func(a netip.Prefix) bool { return !a.IsValid() })
	switch vm := p.netns == ""; {
	case vm && (p.HostIfName == "" || len(p.Addresses) == 0 || p.MAC == nil):
		return errors.New("--netns is missing; a VM takes --host-ifname, --address and --mac")
	case !vm && p.MAC != nil:
		return errors.New("--mac is for a VM, and --netns is for a pod with a namespace")
	case p.Unguarded && len(p.Allowed) > 0:
		return errors.New("--allowed-address: without --source-guard the pod sends from any address")
	case p.HostIfName != "" && p.Segment != "":
		return errors.New("--host-ifname and --segment exclude each other")
	case p.Given.Namespace && p.pod.Namespace == "":
		return errors.New("--namespace is empty: name one, or leave the flag out")
	case p.Given.Name && p.pod.Name == "":
		return errors.New("--pod is empty: name the pod, or leave the flag out")
	}
	if g := p.Given; !g.Namespace && !g.Name && !g.Labels {
		return nil
	}
	p.pod.Namespace = cmp.Or(p.pod.Namespace, "default")
	p.Pod = &p.pod
	return p.pod.Validate()
}

func (p *podDevice) with(do func(datapath.EndpointSpec) error) (err error) {
	a := p.EndpointSpec
	a.Owner = service.CLI
	if p.netns == "" {
		a.IfName = ""
	} else if a.Namespace, err = cli.OpenNamespace(p.netns); err != nil {
		return err
	} else {
		defer a.Namespace.Close()
	}
	if p.hostNetns != "" {
		if a.Host, err = cli.OpenNamespace(p.hostNetns); err != nil {
			return err
		}
		defer a.Host.Close()
	}
	return do(a)
}
