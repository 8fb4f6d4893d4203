// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
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

// ipvsSysctls are those of kube-proxy's ipvs mode.
var ipvsSysctls = []rtnl.Sysctl{
	{Key: "net/ipv4/vs/conntrack", Value: "1"},
	{Key: "net/ipv4/vs/conn_reuse_mode", Value: "0"},
	{Key: "net/ipv4/vs/expire_nodest_conn", Value: "1"},
	{Key: "net/ipv4/vs/expire_quiescent_template", Value: "1"},
}

// probeIPVS returns an error that matches errors.ErrUnsupported if the kernel has no IPVS.
func probeIPVS() error {
	return inCurrent(func(host *netns.Namespace) error { return rtnl.In(host).TryGenericFamily("IPVS") })
}

// inCurrent calls a function with the namespace of the calling thread.
func inCurrent(do func(*netns.Namespace) error) error {
	ns, err := netns.Current()
	if err != nil {
		return err
	}
	defer ns.Close()
	return do(ns)
}

// ipvsSets are the sets of cluster IPs with their ports.
var ipvsSets = map[bool]string{true: "KUBE-CLUSTER-IP", false: "KUBE-6-CLUSTER-IP"} // by IPv4

// writeIPVS makes all services those of the host, as kube-proxy's ipvs mode (pkg/proxy/ipvs) with its scheduler rr does. Each
// sync is full: it goes through all services and asks the kernel for each of them, as kube-proxy does. Sets of addresses are
// written over netlink, not by the program ipset, and those that no cluster IP needs are left out.
func writeIPVS(_ context.Context, s proxySync) error {
	err := inCurrent(func(host *netns.Namespace) error { return rtnl.In(host).SetSysctls(ipvsSysctls, nil) })
	if err != nil {
		return err
	}
	handle, err := ipvs.New("")
	if err != nil {
		return err
	}
	defer handle.Close()
	for _, p := range s.ports {
		if err := s.writeServer(handle, p); err != nil {
			return fmt.Errorf("%s: %w", p.frontend, err)
		}
	}
	if err := s.addClusterIPs(); err != nil {
		return fmt.Errorf("addresses of %s: %w", ipvsDevice, err)
	}
	if err := s.fillSet(ipvsSets[s.v4]); err != nil {
		return fmt.Errorf("set %s: %w", ipvsSets[s.v4], err)
	}
	return s.restore(s.ipvsRules())
}

// clearIPVS removes the services, their device and their sets.
func clearIPVS(ctx context.Context) error {
	if err := clearIPTables(ctx); err != nil {
		return err
	}
	handle, err := ipvs.New("")
	if err != nil {
		return err
	}
	defer handle.Close()
	device, err := netlink.LinkByName(ipvsDevice)
	if err == nil {
		err = netlink.LinkDel(device)
	}
	return errors.Join(handle.Flush(), err, netlink.IpsetDestroy(ipvsSets[true]), netlink.IpsetDestroy(ipvsSets[false]))
}

func (s proxySync) family() int {
	if s.v4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// writeServer makes a virtual server and its destinations those of a port. A destination that is gone takes no new
// connections, and is deleted once it has none.
func (s proxySync) writeServer(handle *ipvs.Handle, p servicePort) error {
	server := &ipvs.Service{
		Address: net.IP(p.frontend.Addr().AsSlice()), Protocol: uint16(p.number()), Port: p.frontend.Port(), SchedName: ipvs.RoundRobin,
		AddressFamily: uint16(s.family()), Netmask: 0xffffffff,
	}
	if !s.v4 {
		server.Netmask = 128
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
	write := map[netip.AddrPort]func(*ipvs.Service, *ipvs.Destination) error{}
	for _, b := range p.backends {
		write[b] = handle.NewDestination
	}
	for _, d := range have {
		addr, _ := netip.AddrFromSlice(d.Address)
		at := netip.AddrPortFrom(addr.Unmap(), d.Port)
		switch current := slices.Contains(p.backends, at); {
		case current && d.Weight > 0:
			delete(write, at)
		case current:
			write[at] = handle.UpdateDestination
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
	for b, do := range write {
		d := &ipvs.Destination{Address: net.IP(b.Addr().AsSlice()), Port: b.Port(), Weight: 1, AddressFamily: uint16(s.family())}
		if err := do(server, d); err != nil {
			return fmt.Errorf("destination %s: %w", b, err)
		}
	}
	return nil
}

// number returns the number of the port's protocol.
func (p servicePort) number() uint8 {
	if p.protocol == "udp" {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

// addClusterIPs adds the cluster IPs to the device, which the first full sync creates. Later ones list its addresses.
func (s proxySync) addClusterIPs() error {
	if s.full() {
		err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: ipvsDevice}})
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	device, err := netlink.LinkByName(ipvsDevice)
	if err != nil {
		return err
	}
	if !s.full() {
		_, err = netlink.AddrList(device, s.family())
		return err
	}
	for _, p := range s.ports {
		addr := p.frontend.Addr()
		err := netlink.AddrAdd(device, &netlink.Addr{IPNet: netlink.NewIPNet(addr.AsSlice())})
		if err != nil && !errors.Is(err, unix.EEXIST) { // that of another port
			return fmt.Errorf("add %s: %w", addr, err)
		}
	}
	return nil
}

// fillSet creates a set with the cluster IPs. Partial syncs list it.
func (s proxySync) fillSet(name string) error {
	err := netlink.IpsetCreate(name, "hash:ip,port", netlink.IpsetCreateOptions{
		Replace: true, Family: uint8(s.family()), Revision: 5, MaxElements: 1 << 20,
	})
	if err == nil && !s.full() {
		_, err = netlink.IpsetList(name)
	}
	if err != nil || !s.full() {
		return err
	}
	for _, p := range s.ports {
		port, protocol := p.frontend.Port(), p.number()
		entry := &netlink.IPSetEntry{IP: p.frontend.Addr().AsSlice(), Port: &port, Protocol: &protocol, Replace: true}
		if err := netlink.IpsetAdd(name, entry); err != nil {
			return fmt.Errorf("add %s: %w", p.frontend, err)
		}
	}
	return nil
}

// ipvsRules returns the input of iptables-restore, in a full sync with the jumps.
func (s proxySync) ipvsRules() string {
	set := " -m set --match-set " + ipvsSets[s.v4] + " dst,dst"
	from, local := " ! -s "+s.pods.String(), "127.0.0.0/8"
	if s.masqueradeAll {
		from = ""
	}
	if !s.v4 {
		local = "::1/128"
	}
	text := `*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-SERVICES -s ` + local + ` -j RETURN
-A KUBE-SERVICES -m comment --comment "Kubernetes service cluster ip + port for masquerade purpose"` + set + from + ` -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES` + set + ` -j ACCEPT
` + iptablesMarks
	if s.full() {
		text += `-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
`
	}
	return text + "COMMIT\n"
}
