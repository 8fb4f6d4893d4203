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

// addEndpoint makes a device an endpoint and says so.
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

// warnOfLabels warns if policies use other labels of a pod than the flags give: the labels of a Pod object come first.
func (c commands) warnOfLabels(d *datapath.Datapath, a datapath.EndpointSpec, endpoints []datapath.Endpoint) error {
	if a.Given == nil || !a.Given.Labels || a.Pod == nil || len(endpoints) == 0 {
		return nil
	}
	pods, err := knownPods(d)
	if pod := pods[endpoints[0].IP]; err == nil && !maps.Equal(pod.Labels, a.Pod.Labels) {
		fmt.Fprintf(c.Stderr, "mustang: --label is ignored: the Pod object %s/%s decides the labels, %s\n", pod.Namespace,
			pod.Name, cmp.Or(labels(pod.Labels), "none"))
	}
	return err
}

func (c commands) epRemove() *cobra.Command {
	var device podDevice
	var remove func(context.Context, *datapath.Datapath) error
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
			remove, err = device.removal(args)
			return err
		}),
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			return c.OnExisting(ctx, errors.New("there are no endpoints"),
				func(d *datapath.Datapath) error { return remove(ctx, d) })
		}),
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
		return nil, fmt.Errorf("endpoint %q: want an ID or an IP address", args[0])
	}
	return func(ctx context.Context, d *datapath.Datapath) error { return d.Endpoints().Delete(ctx, uint32(id)) }, nil
}

// endpointJSON is an endpoint as ep ls -o json prints it.
type endpointJSON struct {
	ID      uint32 `json:"id"`
	IP      string `json:"ip"`
	Host    bool   `json:"host"`
	IfIndex int    `json:"ifindex"`
	Link    string `json:"link"`
	Mode    string `json:"mode"`
	Device  string `json:"device"`
	Netns   string `json:"netns"`
	Guard   string `json:"guard"`
	PodMAC  string `json:"pod_mac"`
	NodeMAC string `json:"node_mac"`
	// Allowed is what the pod may use as source besides its addresses.
	Allowed []netip.Prefix `json:"allowed"`
	// Namespace, Pod and Labels are what network policies know of the pod.
	Namespace string            `json:"namespace"`
	Pod       string            `json:"pod"`
	Labels    map[string]string `json:"labels"`
}

// knownEndpoint is an endpoint with what network policies know of its pod.
type knownEndpoint struct {
	datapath.Endpoint
	pod policy.Pod
}

// listEndpoints returns all endpoints.
func listEndpoints(ctx context.Context, d *datapath.Datapath) ([]knownEndpoint, error) {
	endpoints, err := d.Endpoints().List(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.Endpoints().Describe(endpoints); err != nil {
		return nil, err
	}
	pods, err := knownPods(d)
	if err != nil {
		return nil, err
	}
	var all []knownEndpoint
	for _, e := range endpoints {
		all = append(all, knownEndpoint{e, pods[e.IP]})
	}
	return all, nil
}

// knownPods returns what policies know of pods, by address.
func knownPods(d *datapath.Datapath) (map[netip.Addr]policy.Pod, error) {
	s, err := d.Policies().Snapshot()
	if err != nil {
		return nil, err
	}
	pods := map[netip.Addr]policy.Pod{}
	for _, p := range s.Pods {
		for _, a := range p.Addresses {
			pods[a.Unmap()] = p
		}
	}
	return pods, nil
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
	return cli.Listing(cmd, func(format string) error {
		endpoints, err := cli.Read(c.Config, func(d *datapath.Datapath) ([]knownEndpoint,
			error) {
			return listEndpoints(cmd.Context(), d)
		})
		if err != nil {
			return err
		}
		return c.printEndpoints(endpoints, format)
	})
}

func (c commands) printEndpoints(endpoints []knownEndpoint, format string) error {
	var list []endpointJSON
	for _, e := range endpoints {
		item := endpointJSON{
			ID: e.ID, IP: e.IP.String(), Host: e.Host, IfIndex: e.IfIndex, Link: e.Kind, Device: e.Device, Netns: e.Netns,
			Mode:  podlink.ModeOf(podlink.Seen{Kind: e.Kind, Master: e.Master, Layer3: e.Layer3, Ethernet: e.Ethernet}),
			Guard: "off", PodMAC: mac(e.PodMAC), NodeMAC: mac(e.NodeMAC),
			Allowed: append([]netip.Prefix{}, e.Allowed...), Namespace: e.pod.Namespace, Pod: e.pod.Name, Labels: e.pod.Labels,
		}
		if e.Guarded {
			item.Guard = "on"
		}
		if item.Labels == nil {
			item.Labels = map[string]string{}
		}
		list = append(list, item)
	}
	header := []string{"ID", "IP", "LINK", "DEVICE", "NETNS", "GUARD"}
	if format == "wide" {
		header = append(header, "POD MAC", "NODE MAC", "ALLOWED")
	}
	return cli.PrintList(c.Stdout, format, list, cli.Table[endpointJSON]{
		Key:    "endpoints",
		Header: append(header, "NAMESPACE", "POD", "LABELS"),
		Row: func(e endpointJSON) []string {
			row := []string{strconv.FormatUint(uint64(e.ID), 10), e.IP, cmp.Or(e.Mode, "-"), cmp.Or(e.Device, "-"),
				cmp.Or(e.Netns, "-"), e.Guard}
			if format == "wide" {
				row = append(row, cmp.Or(e.PodMAC, "-"), cmp.Or(e.NodeMAC, "-"), cmp.Or(prefixes(e.Allowed), "-"))
			}
			return append(row, e.Namespace, e.Pod, cmp.Or(labels(e.Labels), "-"))
		},
	})
}

// labels returns labels as --label takes them.
func labels(all map[string]string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		out = append(out, key+"="+all[key])
	}
	return strings.Join(out, ",")
}

// prefixes returns prefixes as --allowed-address takes them, with commas between.
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

// mac returns an address as text, empty when it is none.
func mac(a net.HardwareAddr) string {
	for _, b := range a {
		if b != 0 {
			return a.String()
		}
	}
	return ""
}
