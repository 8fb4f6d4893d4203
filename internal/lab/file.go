// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"mustang/internal/lab/labfile"

	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

// routerSysctls are set to 0 in the hosts of a file, in addition to hostSysctls. Packets may return on another path
// than they came, and neighbours are reached at once.
var routerSysctls = []string{"net/ipv4/conf/all/rp_filter", "net/ipv4/conf/default/rp_filter",
	"net/ipv6/conf/default/accept_dad"}

// ofFile returns the options of a lab of a file, with what listings show of it.
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
	o.Topology, o.Link, o.Datapath, o.Via = TopologyFile, strings.Join(o.links(), ","), distinct(datapaths), distinct(vias)
	if o.Via == "" {
		o.Via = ViaNone
	}
	return o, checkName(o.Name)
}

// links returns the link modes of the pods, each once.
func (o Options) links() []string {
	switch {
	case o.hostsOnly():
		return nil
	case o.File == nil:
		return []string{o.Link}
	}
	var links []string
	for _, h := range o.File.Hosts {
		for _, n := range h.Networks {
			if !slices.Contains(links, n.Link) {
				links = append(links, n.Link)
			}
		}
	}
	return links
}

// distinct returns words, each once, with a comma between them.
func distinct(words []string) string {
	words = slices.Clone(words)
	slices.Sort(words)
	return strings.Join(slices.Compact(words), ",")
}

func buildFile(ctx context.Context, l *Lab) error {
	f := l.Options.File
	for _, h := range f.Hosts {
		if err := l.addFileHost(h); err != nil {
			return err
		}
	}
	if err := l.addFileWires(); err != nil {
		return err
	}
	for _, h := range f.Hosts {
		for i := range h.Networks {
			if err := l.addFileNetwork(ctx, h, i); err != nil {
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
	}
	if strings.Contains(l.Options.Datapath, DatapathEBPF) {
		if err := mountBPF(l.store.bpfMount(l.Options.Name)); err != nil {
			return err
		}
	}
	for _, h := range f.Hosts {
		if err := ctx.Err(); err != nil {
			return err
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

// addFileHost creates a host that routes. Without pods it has its addresses on the loopback device.
func (l *Lab) addFileHost(h labfile.Host) error {
	ns, err := l.addHost(h.Name, routerSysctls...)
	if err != nil {
		return err
	}
	for _, key := range []string{podlink.IPv4Forwarding, podlink.IPv6Forwarding} {
		if err := rtnl.In(ns).SetSysctl(key, "1"); err != nil {
			return err
		}
	}
	config := rtnl.DeviceConfig{Up: true}
	if len(h.Networks) == 0 {
		for _, addr := range h.Addresses {
			config.Addresses = append(config.Addresses, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	return rtnl.In(ns).Configure("lo", config)
}

func (l *Lab) addFileWires() error {
	for _, w := range l.Options.File.Wires {
		a, b := l.namespaces[w.Ends[0].Host], l.namespaces[w.Ends[1].Host]
		if err := addWire(w, a, b); err != nil {
			return err
		}
		for i, ns := range []*netns.Namespace{a, b} {
			if err := rtnl.In(ns).Configure(w.Device, rtnl.DeviceConfig{Addresses: w.Ends[i].Addresses, Up: true}); err != nil {
				return err
			}
		}
	}
	return nil
}

// addFileNetwork sets up a network of a host, by its index there, with its pods.
func (l *Lab) addFileNetwork(ctx context.Context, h labfile.Host, index int) error {
	n := h.Networks[index]
	var pods []pod
	for _, p := range n.Pods {
		pods = append(pods, pod{place: p.Name, hostIfName: p.HostIfName, addresses: p.Addresses})
	}
	return l.addNetwork(ctx, l.modes[n.Link], podlink.Network{
		Host: l.namespaces[h.Name], Gateways: n.Gateways, Bridge: fmt.Sprintf("mst%d", index), Uplink: fmt.Sprintf("%s%d",
			Uplink, index),
	}, pods)
}

// addFileServices gives a host its datapath and its services.
func (l *Lab) addFileServices(ctx context.Context, h labfile.Host) error {
	services := l.Options.File.Translated(h.Name)
	if h.Datapath != DatapathEBPF {
		return l.writeRules(ctx, h, services)
	}
	d, err := l.openDatapathAt(ctx, filepath.Join(l.store.bpfMount(l.Options.Name), h.Name))
	if err != nil {
		return err
	}
	if _, err := d.Services().Apply(ctx, owner, services); err != nil {
		return err
	}
	for _, n := range h.Networks {
		for _, p := range n.Pods {
			if err := l.addEndpoints(ctx, d, p.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeRules writes services as kube-proxy's rules of a host.
func (l *Lab) writeRules(ctx context.Context, h labfile.Host, services []service.Service) error {
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

// awaitNeighbours waits until each pod reaches its host, and each host the hosts at its wires.
func (l *Lab) awaitNeighbours(ctx context.Context) error {
	for _, h := range l.Options.File.Hosts {
		for _, n := range h.Networks {
			for _, p := range n.Pods {
				if err := l.await(ctx, p.Name, h.Name, addrsOf(n.Gateways)); err != nil {
					return err
				}
			}
		}
	}
	for _, w := range l.Options.File.Wires {
		for end := range w.Ends {
			other := w.Ends[1-end]
			if err := l.await(ctx, w.Ends[end].Host, other.Host, addrsOf(other.Addresses)); err != nil {
				return err
			}
		}
	}
	return nil
}
