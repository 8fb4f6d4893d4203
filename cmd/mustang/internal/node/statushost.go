// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath"
	"mustang/internal/netns"
	"mustang/internal/nodenet"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

func (r *statusReport) checkHost(d *datapath.Datapath, services []service.Service, endpoints []datapath.Endpoint,
) error {
	return d.OnHost(func(cookie uint64, host *netns.Namespace) error {
		switch {
		case host == nil && len(endpoints) > 0:
			r.find("mustang ep rm",
				"the host of the endpoints, the network namespace with cookie %d, has neither a name nor a process", cookie)
			return nil
		case host == nil || len(endpoints)+len(r.Links) == 0:
			return nil
		}
		return cmp.Or(r.checkFirewall(host, endpoints), r.checkNodePorts(host, services), r.checkParents(host, endpoints))
	})
}

// dropsPods and acceptPods are found and help for a chain that drops packets of pods.
const (
	dropsPods  = "drops what no rule accepts: packets of pods that pass the host's stack, too"
	acceptPods = "accept packets from and to pods in it"
)

func (r *statusReport) checkFirewall(host *netns.Namespace, endpoints []datapath.Endpoint) error {
	chains, err := droppingChains(host)
	if err != nil || len(chains) == 0 {
		return err
	}
	for _, chain := range chains {
		r.find(acceptPods, "chain %s of host %q "+dropsPods, chain, host.Name())
	}
	call, err := rtnl.In(host).Sysctl("net/bridge/bridge-nf-call-iptables")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	bridged := slices.IndexFunc(endpoints, func(e datapath.Endpoint) bool { return e.Host && e.Master != "" })
	if call == "1" && bridged >= 0 {
		r.find("sysctl net.bridge.bridge-nf-call-iptables=0, or accept the pods' packets",
			"bridge-nf-call-iptables is 1: the firewall drops bridged packets of pods, for example of endpoint %d",
			endpoints[bridged].ID)
	}
	return nil
}

// droppingChains returns the chains "FAMILY TABLE CHAIN" of a host that drop forwarded packets that no rule accepts.
func droppingChains(host *netns.Namespace) (names []string, err error) {
	chains, err := nodenet.HookChains(host)
	if noNFTables(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read firewall of host %q: %w", host.Name(), err)
	}
	for _, chain := range chains {
		if chain.Hook == "forward" && chain.Drops {
			names = append(names, fmt.Sprintf("%s %s %s", chain.Family, chain.Table, chain.Chain))
		}
	}
	return names, nil
}

// noNFTables reports whether an error means that the kernel lacks nftables.
func noNFTables(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL)
}

// checkNodePorts finds UDP node ports in ip_local_port_range: packets to unconnected sockets there count as calls.
func (r *statusReport) checkNodePorts(host *netns.Namespace, services []service.Service) error {
	ephemeral, err := portsOf(host, "ip_local_port_range")
	reserved, reservedErr := portsOf(host, "ip_local_reserved_ports")
	if err := errors.Join(err, reservedErr); err != nil {
		return err
	}
	var taken []uint16
	for _, s := range services {
		port := s.Frontend.Port()
		if s.NodePort && s.Protocol.Overlaps(service.UDP) && ephemeral(port) && !reserved(port) {
			taken = append(taken, port)
		}
	}
	if len(taken) > 0 {
		slices.Sort(taken)
		text := strings.Trim(strings.ReplaceAll(fmt.Sprint(slices.Compact(taken)), " ", ","), "[]")
		r.find(fmt.Sprintf("add %s to sysctl net.ipv4.ip_local_reserved_ports", text),
			"node ports %s are in ip_local_port_range: unconnected UDP sockets of host %q at these ports get no replies",
			text, host.Name())
	}
	return nil
}

// portsOf returns whether a port is in a sysctl: "32768 60999", or "8080,30000-32767".
func portsOf(host *netns.Namespace, key string) (func(port uint16) bool, error) {
	text, err := rtnl.In(host).Sysctl("net/ipv4/" + key)
	if err != nil {
		return nil, fmt.Errorf("read %s of host %q: %w", key, host.Name(), err)
	}
	var ranges [][2]uint16
	for part := range strings.SplitSeq(strings.Join(strings.Fields(text), "-"), ",") {
		var first, last uint16
		if n, _ := fmt.Sscanf(part, "%d-%d", &first, &last); n > 0 {
			ranges = append(ranges, [2]uint16{first, max(first, last)})
		}
	}
	return func(port uint16) bool {
		return slices.ContainsFunc(ranges, func(r [2]uint16) bool { return r[0] <= port && port <= r[1] })
	}, nil
}

// checkParents finds parents of ipvlan pods whose rp_filter is 1: packets of such pods enter the host via the parent,
// but the route to the pods uses another device.
func (r *statusReport) checkParents(host *netns.Namespace, endpoints []datapath.Endpoint) error {
	checked := map[int]bool{0: true}
	for _, e := range endpoints {
		parent := e.Segment()
		if e.Kind != "ipvlan" || checked[parent] {
			continue
		}
		checked[parent] = true
		device, err := rtnl.In(host).DeviceByIndex(parent)
		if err != nil {
			continue // it is gone
		}
		strict, err := strictFilter(host, device.Name)
		if err != nil {
			return err
		}
		if strict {
			r.find(fmt.Sprintf("sysctl net.ipv4.conf.%s.rp_filter=2", device.Name),
				"rp_filter of %s is strict: the host drops packets of ipvlan pods that pass it", device.Name)
		}
	}
	return nil
}

// strictFilter reports whether rp_filter of a device is 1. The kernel uses the larger value of the device and of "all"
// (Documentation/networking/ip-sysctl.rst).
func strictFilter(host *netns.Namespace, device string) (bool, error) {
	own, err := rtnl.In(host).Sysctl("net/ipv4/conf/" + device + "/rp_filter")
	all, allErr := rtnl.In(host).Sysctl("net/ipv4/conf/all/rp_filter")
	return max(own, all) == "1", errors.Join(err, allErr)
}

// checkSources finds uplinks without an address of a family in which outside clients are sent to other nodes: the
// packets need the address as their source.
func (r *statusReport) checkSources(ctx context.Context, d *datapath.Datapath, services []service.Service,
	endpoints []datapath.Endpoint) error {
	uplinks, err := d.Uplinks().List(ctx)
	if err != nil {
		return err
	}
	pods := map[netip.Addr]bool{}
	for _, e := range endpoints {
		pods[e.IP] = true
	}
	elsewhere := func(b service.Backend) bool { return !b.Local && !pods[b.Addr.Addr()] }
	for _, family := range []string{"IPv4", "IPv6"} {
		ofFamily := func(addr netip.Addr) bool { return addr.Is4() == (family == "IPv4") }
		i := slices.IndexFunc(services, func(s service.Service) bool {
			return (s.External || s.NodePort) && ofFamily(s.Frontend.Addr()) && slices.ContainsFunc(s.Backends, elsewhere)
		})
		for _, u := range uplinks {
			have, err := d.Uplinks().Source(u)
			if err != nil {
				return err
			}
			if i >= 0 && !slices.ContainsFunc(have, ofFamily) {
				r.find("give it one, then mustang uplink add",
					"uplink with index %d lacks an %s address: backends on other nodes, for example of %s, are not reached by it",
					u.IfIndex, family, services[i])
			}
		}
	}
	return nil
}
