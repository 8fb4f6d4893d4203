// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// ipvsDevice is the device that has all cluster IPs, so that the host takes packets to them as its own.
const ipvsDevice = "kube-ipvs0"

var ipvsSysctls = []rtnl.Sysctl{
	{Key: "net/ipv4/vs/conntrack", Value: "1"},
	{Key: "net/ipv4/vs/conn_reuse_mode", Value: "0"},
	{Key: "net/ipv4/vs/expire_nodest_conn", Value: "1"},
	{Key: "net/ipv4/vs/expire_quiescent_template", Value: "1"},
}

func clearIPVS() error {
	handle, err := ipvs.New("")
	if err != nil {
		return err
	}
	defer handle.Close()
	device, err := netlink.LinkByName(ipvsDevice)
	if err == nil {
		err = netlink.LinkDel(device)
	}
	return errors.Join(handle.Flush(), err, netlink.IpsetDestroy(families[0].set), netlink.IpsetDestroy(families[1].set))
}

// ipvs writes the rules as kube-proxy's ipvs mode does (pkg/proxy/ipvs), with its scheduler rr. Each sync is full:
// it goes through all services and queries the kernel for each. Sets of addresses are written via netlink, not the
// program ipset. Sets that no cluster IP needs are left out.
func (s proxySync) ipvs(host *netns.Namespace) error {
	if err := rtnl.In(host).SetSysctls(ipvsSysctls, nil); err != nil {
		return err
	}
	jumps := false
	err := host.Do(func() error {
		handle, err := ipvs.New("")
		if err != nil {
			return err
		}
		defer handle.Close()
		if jumps, err = s.bindServices(handle); err != nil {
			return err
		}
		return s.fillSet()
	})
	if err != nil {
		return err
	}
	return feed(host, s.ipvsText(jumps), s.program+"-restore", "-w", "--noflush", "--counters")
}

// bindServices writes the services and binds their addresses to the device. first is true if it had none.
func (s proxySync) bindServices(handle *ipvs.Handle) (first bool, err error) {
	device, err := netlink.LinkByName(ipvsDevice)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		device = &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: ipvsDevice}}
		err = netlink.LinkAdd(device)
	}
	if err != nil {
		return false, err
	}
	bound, err := netlink.AddrList(device, s.number)
	if err != nil {
		return false, err
	}
	has := map[netip.Addr]bool{}
	for _, a := range bound {
		addr, _ := netip.AddrFromSlice(a.IP)
		has[addr.Unmap()] = true
	}
	for _, p := range s.ports {
		if err := s.ipvsService(handle, p); err != nil {
			return false, fmt.Errorf("%s: %w", p.frontend, err)
		}
		if addr := p.frontend.Addr(); !has[addr] {
			if err := netlink.AddrAdd(device, &netlink.Addr{IPNet: netlink.NewIPNet(addr.AsSlice())}); err != nil {
				return false, fmt.Errorf("add %s to %s: %w", addr, ipvsDevice, err)
			}
			has[addr] = true
		}
	}
	return len(bound) == 0, nil
}

// ipvsService: a removed destination takes no new connections, and is deleted after its last one.
func (s proxySync) ipvsService(handle *ipvs.Handle, p servicePort) error {
	server := &ipvs.Service{
		Address: net.IP(p.frontend.Addr().AsSlice()), Protocol: uint16(p.number()), Port: p.frontend.Port(),
		SchedName: ipvs.RoundRobin, AddressFamily: uint16(s.number), Netmask: s.netmask,
	}
	if _, err := handle.GetService(server); err != nil {
		if err := handle.NewService(server); err != nil {
			return err
		}
	}
	have, err := handle.GetDestinations(server)
	if err != nil {
		return err
	}
	weights := map[netip.AddrPort]int{}
	for _, d := range have {
		addr, _ := netip.AddrFromSlice(d.Address)
		at := netip.AddrPortFrom(addr.Unmap(), d.Port)
		weights[at] = d.Weight
		switch {
		case slices.Contains(p.backends, at):
		case d.ActiveConnections+d.InactiveConnections == 0:
			err = handle.DelDestination(server, d)
		case d.Weight > 0:
			d.Weight = 0
			err = handle.UpdateDestination(server, d)
		}
		if err != nil {
			return err
		}
	}
	for _, b := range p.backends {
		weight, ok := weights[b]
		d := &ipvs.Destination{Address: net.IP(b.Addr().AsSlice()), Port: b.Port(), Weight: 1,
			AddressFamily: uint16(s.number)}
		switch {
		case !ok:
			err = handle.NewDestination(server, d)
		case weight == 0:
			err = handle.UpdateDestination(server, d)
		}
		if err != nil {
			return fmt.Errorf("destination %s: %w", b, err)
		}
	}
	return nil
}

func (p servicePort) number() uint8 {
	if p.protocol == "udp" {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

func (s proxySync) fillSet() error {
	type member struct {
		at       netip.AddrPort
		protocol uint8
	}
	listed := &netlink.IPSetResult{}
	err := netlink.IpsetCreate(s.set, "hash:ip,port", netlink.IpsetCreateOptions{
		Replace: true, Family: uint8(s.number), Revision: 5, MaxElements: 1 << 20,
	})
	if err == nil {
		listed, err = netlink.IpsetList(s.set)
	}
	if err != nil {
		return fmt.Errorf("create set %s: %w", s.set, err)
	}
	has := map[member]bool{}
	for _, e := range listed.Entries {
		if addr, _ := netip.AddrFromSlice(e.IP); e.Port != nil && e.Protocol != nil {
			has[member{netip.AddrPortFrom(addr.Unmap(), *e.Port), *e.Protocol}] = true
		}
	}
	for _, p := range s.ports {
		port, protocol := p.frontend.Port(), p.number()
		if has[member{p.frontend, protocol}] {
			continue
		}
		if err := netlink.IpsetAdd(s.set, &netlink.IPSetEntry{IP: p.frontend.Addr().AsSlice(), Port: &port,
			Protocol: &protocol, Replace: true}); err != nil {
			return fmt.Errorf("add %s to set %s: %w", p.frontend, s.set, err)
		}
	}
	return nil
}

func (s proxySync) ipvsText(jumps bool) string {
	match := `-m comment --comment "Kubernetes service cluster ip + port for masquerade purpose" -m set --match-set ` +
		s.set + " dst,dst"
	from := " ! -s " + s.pods.String()
	if s.masqueradeAll {
		from = ""
	}
	text := `*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-SERVICES -s ` + s.localhost + ` -j RETURN
-A KUBE-SERVICES ` + match + from + ` -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set ` + s.set + ` dst,dst -j ACCEPT
` + iptablesMarks
	if jumps {
		text += `-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
`
	}
	return text + "COMMIT\n"
}
