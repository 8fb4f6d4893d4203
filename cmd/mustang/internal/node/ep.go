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
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/podlink"
	"mustang/internal/policy"
)

func (c commands) ep() *cobra.Command {
	return cli.Group("ep", "Endpoints: pods with traffic handled by the eBPF programs", c.epAdd(), c.epList(),
		c.epRemove())
}

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
--label are what network policies know of the pod.

An endpoint that exists keeps what no flag names. --label replaces all labels, and --address all
addresses. Root of a pod chooses the addresses of its device: for an untrusted pod give --address,
the first time too.`,
		Example: `  mustang ep add --ifname=eth0 --netns=/var/run/netns/pod-a
  mustang ep add --netns=/var/run/netns/pod-a --segment=br0
  mustang ep add --netns=pod-a --namespace=shop --label=app=web
  mustang ep add --netns=pod-a --address=192.168.10.10 --address=fd00:10::a
  mustang ep add --netns=/var/run/netns/pod-a --allowed-address=192.168.10.200
  mustang ep add --host-ifname=tap0 --address=192.168.10.20 --mac=52:54:00:00:00:01`,
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			return device.with(func(a datapath.EndpointSpec) error { return c.addEndpoint(ctx, a) })
		}),
	}
	cmd.PreRunE = cli.Check(func([]string) error { return device.check(cmd) })
	device.addFlags(cmd)
	device.addMoreFlags(cmd)
	return cmd
}

// addEndpoint makes a device an endpoint and prints it.
func (c commands) addEndpoint(ctx context.Context, a datapath.EndpointSpec) error {
	on, err := c.OnDatapath, a.Check()
	if errors.Is(err, datapath.ErrNoAddress) { // which an endpoint that exists has
		on = func(ctx context.Context, do func(*datapath.Datapath) error) error { return c.OnExisting(ctx, err, do) }
	} else if err != nil {
		return err // before anything is pinned
	}
	return on(ctx, func(d *datapath.Datapath) error {
		endpoints, change, err := d.Endpoints().Put(ctx, a)
		if err != nil {
			return err
		}
		for _, e := range endpoints {
			if _, err := fmt.Fprintf(c.Stdout, "endpoint %d %s %s\n", e.ID, e.IP, change); err != nil {
				return err
			}
		}
		return c.warnOfLabels(d, a, endpoints)
	})
}

// warnOfLabels warns if policies use other labels of a pod than the flags give: labels of a Pod object override these.
func (c commands) warnOfLabels(d *datapath.Datapath, a datapath.EndpointSpec, endpoints []datapath.Endpoint) error {
	if a.Given == nil || !a.Given.Labels || a.Pod == nil || len(endpoints) == 0 {
		return nil
	}
	pods, err := knownPods(d)
	if pod := pods[endpoints[0].IP]; err == nil && !maps.Equal(pod.Labels, a.Pod.Labels) {
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
			if (len(args) == 0) == (device.netns == "") {
				return errors.New("name the endpoint by its ID, an IP, or --netns")
			}
			if len(args) == 0 {
				return nil
			}
			if ip, err = netip.ParseAddr(args[0]); err == nil {
				return nil
			}
			if id, err = strconv.ParseUint(args[0], 10, 32); err != nil {
				return fmt.Errorf("endpoint %q: want an ID or an IP address", args[0])
			}
			return nil
		}),
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			return c.OnExisting(ctx, errors.New("there are no endpoints"), func(d *datapath.Datapath) error {
				switch {
				case ip.IsValid():
					return d.Endpoints().DeleteIP(ctx, ip)
				case device.netns == "":
					return d.Endpoints().Delete(ctx, uint32(id))
				}
				return device.with(func(a datapath.EndpointSpec) error { return d.Endpoints().DeleteDevice(ctx, a) })
			})
		}),
	}
	device.addFlags(cmd)
	return cmd
}

// endpointJSON is an endpoint as ep ls -o json prints it, with its pod's name and labels for network policies.
type endpointJSON struct {
	ID      uint32     `json:"id"`
	IP      netip.Addr `json:"ip"`
	Host    bool       `json:"host"`
	IfIndex int        `json:"ifindex"`
	Link    string     `json:"link"`
	Mode    string     `json:"mode"`
	Device  string     `json:"device"`
	Netns   string     `json:"netns"`
	Guard   string     `json:"guard"`
	PodMAC  string     `json:"pod_mac"`
	NodeMAC string     `json:"node_mac"`
	// Allowed are source addresses of the pod other than its own.
	Allowed   []netip.Prefix    `json:"allowed"`
	Namespace string            `json:"namespace"`
	Pod       string            `json:"pod"`
	Labels    map[string]string `json:"labels"`

	sent, received datapath.Traffic // of the device
}

// listEndpoints returns all endpoints.
func listEndpoints(ctx context.Context, d *datapath.Datapath) (list []endpointJSON, err error) {
	endpoints, err := d.Endpoints().List(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.Endpoints().Describe(endpoints); err != nil {
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

// knownPods returns the pods that policies name, by address.
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
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List endpoints",
		Long: `List endpoints, a line for each address of a pod. LINK is the pod's link mode, DEVICE the device
with the programs, NETNS the pod's network namespace. GUARD shows whether the source guard is on.
Network policies match NAMESPACE, POD and LABELS; an endpoint without a name is called "endpoint-ID".
-o wide also has MAC addresses, and in ALLOWED further source addresses of the pod.`,
	}
	return cli.ListCommand(c.Config, cmd, cli.Table[endpointJSON]{
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

// prefixes returns prefixes in the form of --allowed-address, separated by commas.
func prefixes(all []netip.Prefix) string {
	var out []string
	for _, p := range all {
		if p.IsSingleIP() {
			out = append(out, p.Addr().String())
			continue
		}
		out = append(out, p.String())
	}
	return strings.Join(out, ",")
}

// mac returns an address as text, "" without one.
func mac(a net.HardwareAddr) string {
	for _, b := range a {
		if b != 0 {
			return a.String()
		}
	}
	return ""
}
