// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"mustang/internal/lab/kubeproxy"
	"mustang/internal/lab/labfile"

	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

// routerSysctls are set to 0 in the hosts of a file besides hostSysctls: packets may return by another way than they came, and
// neighbours are reached at once.
var routerSysctls = []string{"net/ipv4/conf/all/rp_filter", "net/ipv4/conf/default/rp_filter", "net/ipv6/conf/default/accept_dad"}

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
	o.Topology, o.Link, o.Datapath, o.Via = TopologyFile, strings.Join(o.fileLinks(), ","), distinct(datapaths), distinct(vias)
	if o.Via == "" {
		o.Via = ViaNone
	}
	return o, checkName(o.Name)
}

// fileLinks returns the link modes of a file, each once.
func (o Options) fileLinks() []string {
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

// fileNetwork is the network of a link mode on a host of a file.
type fileNetwork struct {
	labfile.Network
	mode    podlink.Mode
	network podlink.Network
}

// buildFile builds a lab that a file describes.
func buildFile(ctx context.Context, l *Lab) error {
	f := l.Options.File
	modes := map[string]podlink.Mode{}
	for _, link := range l.Options.fileLinks() {
		mode, err := podlink.Lookup(link)
		if err != nil {
			return err
		}
		if err := mode.Probe(); err != nil {
			return err
		}
		modes[link] = mode
	}
	if err := l.addCgroup(); err != nil {
		return err
	}
	for _, h := range f.Hosts {
		if err := l.addFileHost(h); err != nil {
			return err
		}
	}
	if err := l.addFileWires(); err != nil {
		return err
	}
	networks := map[string][]fileNetwork{}
	for _, h := range f.Hosts {
		for i, n := range h.Networks {
			network, err := l.addFileNetwork(ctx, modes[n.Link], h, i)
			if err != nil {
				return err
			}
			networks[h.Name] = append(networks[h.Name], network)
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
		if err := l.addFileServices(ctx, h, networks[h.Name]); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	if err := l.awaitNeighbours(ctx); err != nil {
		return err
	}
	for _, w := range f.Wires {
		for _, end := range w.Ends {
			if err := emulate(l.namespaces[end.Host], w.Device, w.Rate, w.Delay); err != nil {
				return err
			}
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
		if err := requireEmulation(a, w.Rate, w.Delay); err != nil {
			return err
		}
		if err := joinHosts(a, w.Device, b, w.Device); err != nil {
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
func (l *Lab) addFileNetwork(ctx context.Context, mode podlink.Mode, h labfile.Host, index int) (out fileNetwork, err error) {
	host := l.namespaces[h.Name]
	out = fileNetwork{h.Networks[index], mode, podlink.Network{
		Host: host, Gateways: h.Networks[index].Gateways, Bridge: fmt.Sprintf("mst%d", index),
	}}
	switch mode.Traits().Needs {
	case podlink.NeedsUplink:
		out.network.Uplink = fmt.Sprintf("%s%d", Uplink, index)
		err = l.addFileUplink(host, out.network.Uplink)
	case podlink.NeedsOpenVSwitch:
		out.network.OVSDB, err = l.fileSwitch(h, index)
	}
	if err != nil {
		return out, err
	}
	if err := mode.Setup(out.network); err != nil {
		return out, err
	}
	for _, p := range out.Pods {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		if err := l.addPod(mode, out.network, pod{place: p.Name, hostIfName: p.HostIfName, addresses: p.Addresses}); err != nil {
			return out, err
		}
	}
	return out, nil
}

// addFileUplink gives a host a device that leads to a place without addresses, which all such devices of the lab share.
func (l *Lab) addFileUplink(host *netns.Namespace, device string) (err error) {
	outside, ok := l.namespaces[Outside]
	if !ok {
		if outside, err = l.addNamespace(Outside); err != nil {
			return err
		}
	}
	devices, err := rtnl.In(outside).Devices()
	if err != nil {
		return err
	}
	return joinHosts(host, device, outside, fmt.Sprintf("%s%d", OutsideIfName, len(devices)))
}

// fileSwitch returns the database of a host's Open vSwitch, which all its networks share.
func (l *Lab) fileSwitch(h labfile.Host, index int) (string, error) {
	for _, earlier := range h.Networks[:index] {
		mode, err := podlink.Lookup(earlier.Link)
		if err == nil && mode.Traits().Needs == podlink.NeedsOpenVSwitch {
			return l.ovsdb(h.Name), nil
		}
	}
	return l.startSwitch(l.namespaces[h.Name], h.Name)
}

// addFileServices gives a host its datapath and its services.
func (l *Lab) addFileServices(ctx context.Context, h labfile.Host, networks []fileNetwork) error {
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
	for _, n := range networks {
		for _, p := range n.Pods {
			spec, err := l.endpointOf(p.Name, n.mode, n.network, podlink.Pod{Namespace: l.namespaces[p.Name], IfName: IfName, HostIfName: p.HostIfName})
			if err == nil {
				_, _, err = d.Endpoints().Put(ctx, spec)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", p.Name, err)
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
	rules := kubeproxy.Rules{Services: services, PodCIDRs: labfile.PodPrefixes(), Sorted: true}
	for _, link := range h.Networks { // see Lab.kubeproxy
		mode, err := podlink.Lookup(link.Link)
		rules.MasqueradeAll = rules.MasqueradeAll || err == nil && !mode.Traits().Routed
	}
	proxy, err := kubeproxy.Open(h.Via, l.namespaces[h.Name])
	if err != nil {
		return err
	}
	return proxy.Write(ctx, rules)
}

// awaitNeighbours waits until each pod reaches its host, and each host those at its wires.
func (l *Lab) awaitNeighbours(ctx context.Context) error {
	await := func(from, to string, addrs []netip.Prefix) error {
		for _, addr := range addrs {
			if err := awaitPath(ctx, l.namespaces[from], addr.Addr()); err != nil {
				return fmt.Errorf("%s to %s: %w", from, to, err)
			}
		}
		return nil
	}
	for _, h := range l.Options.File.Hosts {
		for _, n := range h.Networks {
			for _, p := range n.Pods {
				if err := await(p.Name, h.Name, n.Gateways); err != nil {
					return err
				}
			}
		}
	}
	for _, w := range l.Options.File.Wires {
		for end := range w.Ends {
			if err := await(w.Ends[end].Host, w.Ends[1-end].Host, w.Ends[1-end].Addresses); err != nil {
				return err
			}
		}
	}
	return nil
}
