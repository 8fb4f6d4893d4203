// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"mustang/internal/lab/labfile"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// routerSysctls are set to 0 in the hosts of a file: packets may return on another path than they came.
var routerSysctls = []string{"net/ipv4/conf/all/rp_filter", "net/ipv4/conf/default/rp_filter",
	"net/ipv6/conf/default/accept_dad"}

func (o Options) ofFile() (Options, error) {
	if o != (Options{Name: o.Name, File: o.File}) {
		return o, optionErrorf("a lab of a file takes no option but a name")
	}
	var datapaths, vias []string
	for _, h := range o.File.Hosts {
		datapaths = append(datapaths, h.Datapath)
		if h.Via != "" {
			vias = append(vias, h.Via)
		}
	}
	distinct := func(words []string) string {
		slices.Sort(words)
		return strings.Join(slices.Compact(words), ",")
	}
	o.Topology, o.Link, o.Datapath = TopologyFile, strings.Join(o.links(), ","), distinct(datapaths)
	o.Via = cmp.Or(distinct(vias), ViaNone)
	return o, checkName(o.Name)
}

func buildFile(ctx context.Context, l *Lab) error {
	f := l.Options.File
	if strings.Contains(l.Options.Datapath, DatapathEBPF) {
		if err := mountBPF(l.store.bpfMount(l.Options.Name)); err != nil {
			return err
		}
	}
	for _, h := range f.Hosts {
		if err := l.addFileHost(h); err != nil {
			return err
		}
	}
	for _, w := range f.Wires {
		a, b := l.namespaces[w.Ends[0].Host], l.namespaces[w.Ends[1].Host]
		if err := joinHosts(a, w.Device, b, w.Device); err != nil {
			return err
		}
		for i, ns := range []*netns.Namespace{a, b} {
			if err := rtnl.In(ns).Configure(w.Device, rtnl.DeviceConfig{Addresses: w.Ends[i].Addresses, Up: true}); err != nil {
				return err
			}
		}
	}
	for _, h := range f.Hosts {
		for _, route := range h.Routes {
			if err := rtnl.In(l.namespaces[h.Name]).AddRoute(route.To, route.Via); err != nil {
				return err
			}
		}
		if err := l.addFileServices(ctx, h); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	if err := l.awaitNeighbours(ctx); err != nil {
		return err
	}
	for _, w := range f.Wires {
		if err := limitWire(w, l.namespaces[w.Ends[0].Host], l.namespaces[w.Ends[1].Host]); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) addFileHost(h labfile.Host) error {
	ns, err := l.addHost(h.Name, routerSysctls...)
	if err != nil {
		return err
	}
	forward := []rtnl.Sysctl{{Key: podlink.IPv4Forwarding, Value: "1"}, {Key: podlink.IPv6Forwarding, Value: "1"}}
	if err := rtnl.In(ns).SetSysctls(forward, nil); err != nil {
		return err
	}
	config := rtnl.DeviceConfig{Up: true}
	if len(h.Networks) == 0 {
		config.Addresses = convert(h.Addresses, hostPrefix)
	}
	if err := rtnl.In(ns).Configure("lo", config); err != nil {
		return err
	}
	for i, n := range h.Networks {
		pods := convert(n.Pods, func(p labfile.Pod) pod {
			return pod{place: p.Name, hostIfName: p.HostIfName, addresses: p.Addresses}
		})
		network := podlink.Network{Host: ns, Gateways: n.Gateways, Bridge: fmt.Sprintf("mst%d", i),
			Uplink: fmt.Sprintf("%s%d", Uplink, i)}
		if err := l.addNetwork(l.modes[n.Link], network, pods); err != nil {
			return err
		}
	}
	return nil
}

// addFileServices gives a host its services: in a datapath of its own, or as kube-proxy's rules.
func (l *Lab) addFileServices(ctx context.Context, h labfile.Host) error {
	services := l.Options.File.Translated(h.Name)
	if h.Datapath == DatapathEBPF {
		d, err := l.openDatapathAt(ctx, filepath.Join(l.store.bpfMount(l.Options.Name), h.Name))
		if err != nil {
			return err
		}
		if _, err := d.Services().Apply(ctx, owner, services); err != nil {
			return err
		}
		for _, p := range h.Pods() {
			if err := l.addEndpoints(ctx, d, p.Name); err != nil {
				return err
			}
		}
		return nil
	}
	if len(services) == 0 {
		return nil
	}
	rules := proxyRules{Services: services, PodCIDRs: labfile.PodPrefixes(), Sorted: true}
	for _, link := range h.Networks { // see Lab.proxyWith
		rules.MasqueradeAll = rules.MasqueradeAll || !l.modes[link.Link].Traits().Routed
	}
	proxy, err := openProxy(h.Via, l.namespaces[h.Name])
	if err != nil {
		return err
	}
	return proxy.write(ctx, rules)
}

func (l *Lab) awaitNeighbours(ctx context.Context) error {
	for _, h := range l.Options.File.Hosts {
		for _, n := range h.Networks {
			for _, p := range n.Pods {
				if err := l.await(ctx, p.Name, h.Name, rtnl.Addrs(n.Gateways)); err != nil {
					return err
				}
			}
		}
	}
	for _, w := range l.Options.File.Wires {
		for end, to := range w.Ends {
			if err := l.await(ctx, w.Ends[1-end].Host, to.Host, rtnl.Addrs(to.Addresses)); err != nil {
				return err
			}
		}
	}
	return nil
}
