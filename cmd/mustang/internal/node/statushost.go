// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"mustang/internal/datapath"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

// checkHost finds settings of the host that drop packets of pods. The endpoints are described.
func (r *statusReport) checkHost(ctx context.Context, d *datapath.Datapath, endpoints []datapath.Endpoint) error {
	return d.OnHost(func(cookie uint64, host *netns.Namespace) error {
		switch {
		case host == nil && len(endpoints) > 0:
			r.find("mustang ep rm",
				"the host of the endpoints, the network namespace with cookie %d, has neither a name nor a process", cookie)
			return nil
		case host == nil || len(endpoints)+len(r.Links) == 0:
			return nil
		}
		return cmp.Or(r.checkFirewall(host, endpoints), r.checkNodePorts(ctx, d, host), r.checkParents(host, endpoints))
	})
}

// checkFirewall finds chains that drop packets of pods, also bridged ones.
func (r *statusReport) checkFirewall(host *netns.Namespace, endpoints []datapath.Endpoint) error {
	chains, err := droppingChains(host)
	if err != nil {
		return err
	}
	for _, chain := range chains {
		r.find("accept packets from and to pods in it",
			"chain %s of host %q drops what no rule accepts: packets of pods that pass the host's stack, too",
			chain, host.Name())
	}
	call, err := rtnl.In(host).Sysctl("net/bridge/bridge-nf-call-iptables")
	if errors.Is(err, os.ErrNotExist) || err == nil && (call != "1" || len(chains) == 0) {
		return nil
	}
	bridged := func(e datapath.Endpoint) bool { return e.Host && e.Master != "" }
	if i := slices.IndexFunc(endpoints, bridged); err == nil && i >= 0 {
		r.find("sysctl net.bridge.bridge-nf-call-iptables=0, or accept the pods' packets",
			"bridge-nf-call-iptables is 1: the firewall drops bridged packets of pods, for example of endpoint %d",
			endpoints[i].ID)
	}
	return err
}

// checkParents finds parents of ipvlan pods whose rp_filter is strict: packets of such pods enter the host via the
// parent, but the route to the pods uses another device.
func (r *statusReport) checkParents(host *netns.Namespace, endpoints []datapath.Endpoint) error {
	checked := make(map[int]bool)
	for _, e := range endpoints {
		if parent := e.Segment(); e.Kind == "ipvlan" && parent != 0 && !checked[parent] {
			checked[parent] = true
			if err := r.checkStrict(host, parent); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkNodePorts finds UDP node ports in ip_local_port_range: packets to an unconnected socket there count as calls of
// the service.
func (r *statusReport) checkNodePorts(ctx context.Context, d *datapath.Datapath, host *netns.Namespace) error {
	services, err := d.Services().List(ctx)
	if err != nil {
		return err
	}
	var ephemeral, reserved, taken ports
	for key, p := range map[string]*ports{"ip_local_port_range": &ephemeral, "ip_local_reserved_ports": &reserved} {
		text, err := rtnl.In(host).Sysctl("net/ipv4/" + key)
		if err == nil {
			*p, err = parsePorts(strings.Join(strings.Fields(text), "-"))
		}
		if err != nil {
			return fmt.Errorf("read %s of host %q: %w", key, host.Name(), err)
		}
	}
	for _, s := range services {
		port := s.Frontend.Port()
		taken[port] = s.NodePort && s.Protocol.Overlaps(service.UDP) && ephemeral[port] && !reserved[port] || taken[port]
	}
	if text := taken.String(); text != "" {
		r.find(fmt.Sprintf("add %s to sysctl net.ipv4.ip_local_reserved_ports", text),
			"node ports %s are in ip_local_port_range: an unconnected UDP socket of host %q that gets one hears no answers",
			text, host.Name())
	}
	return nil
}

// droppingChains returns the chains of nftables, and of iptables over nftables, that drop forwarded packets by default:
// "ip filter FORWARD".
func droppingChains(host *netns.Namespace) (names []string, err error) {
	conn, err := nftables.New(nftables.WithNetNSFd(host.FD()))
	if err != nil {
		return nil, fmt.Errorf("read firewall of host %q: %w", host.Name(), err)
	}
	chains, err := conn.ListChains()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) {
		return nil, nil // a kernel without nftables
	}
	if err != nil {
		return nil, fmt.Errorf("read firewall of host %q: %w", host.Name(), err)
	}
	families := map[nftables.TableFamily]string{
		nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	}
	for _, c := range chains {
		family, ok := families[c.Table.Family]
		if ok && c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward && c.Policy != nil &&
			*c.Policy == nftables.ChainPolicyDrop {
			names = append(names, fmt.Sprintf("%s %s %s", family, c.Table.Name, c.Name))
		}
	}
	return names, nil
}

// ports is a set of ports.
type ports [1 << 16]bool

// parsePorts parses a list of ports and ranges, as in ip_local_reserved_ports: "8080,30000-32767".
func parsePorts(text string) (p ports, err error) {
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, fromErr := strconv.ParseUint(first, 10, 16)
		to, toErr := strconv.ParseUint(last, 10, 16)
		if err := errors.Join(fromErr, toErr); err != nil {
			return p, err
		}
		for port := from; port <= to; port++ {
			p[port] = true
		}
	}
	return p, nil
}

// String formats p in the form of parsePorts.
func (p *ports) String() string {
	var parts []string
	for first := 0; first < len(p); first++ {
		if !p[first] {
			continue
		}
		last := first
		for last+1 < len(p) && p[last+1] {
			last++
		}
		part := strconv.Itoa(first)
		if last > first {
			part += "-" + strconv.Itoa(last)
		}
		parts, first = append(parts, part), last
	}
	return strings.Join(parts, ",")
}

// checkStrict finds a device whose rp_filter is 1. The kernel uses the larger value of the device and of "all"
// (Documentation/networking/ip-sysctl.rst).
func (r *statusReport) checkStrict(host *netns.Namespace, index int) error {
	device, err := rtnl.In(host).DeviceByIndex(index)
	if err != nil {
		return nil // it is gone
	}
	own, err := rtnl.In(host).Sysctl("net/ipv4/conf/" + device.Name + "/rp_filter")
	all, allErr := rtnl.In(host).Sysctl("net/ipv4/conf/all/rp_filter")
	if err := errors.Join(err, allErr); err != nil {
		return err
	}
	if max(own, all) == "1" {
		r.find(fmt.Sprintf("sysctl net.ipv4.conf.%s.rp_filter=2", device.Name),
			"rp_filter of %s is strict: the host drops packets of ipvlan pods that pass it", device.Name)
	}
	return nil
}
