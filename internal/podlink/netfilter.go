// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

// callSysctl switches the netfilter call for all bridges of a namespace, as
// opposed to a bridge's own attribute: a packet is passed to netfilter if either
// is on.
const callSysctl = "net/bridge/bridge-nf-call-"

// callTables are what bridged packets can be passed to.
func callTables() []string { return []string{"iptables", "ip6tables", "arptables"} }

// configureBridge sets what a bridge is to have: no spanning tree, no delay, the
// MTU, and the netfilter call.
func configureBridge(host side, link netlink.Link, network Network) error {
	name := link.Attrs().Name
	call := byte(0)
	if network.NetfilterCall {
		call = 1
		if !hasNetfilterCall(host.ns) {
			return &UnsupportedError{
				Mode: "bridge", Feature: "netfilter call for bridges", Module: "br_netfilter", Since: "3.18",
				Kernel: kernelRelease(),
			}
		}
	}
	if link.Attrs().MTU != network.mtu() {
		if err := host.LinkSetMTU(link, network.mtu()); err != nil {
			return fmt.Errorf("set MTU of bridge %q in %q to %d: %w", name, host.ns.Name(), network.mtu(), err)
		}
	}
	request := vnl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	info := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	info.Index = int32(link.Attrs().Index)
	request.AddData(info)
	linkInfo := vnl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	linkInfo.AddRtAttr(vnl.IFLA_INFO_KIND, vnl.NonZeroTerminated("bridge"))
	data := linkInfo.AddRtAttr(vnl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(vnl.IFLA_BR_STP_STATE, vnl.Uint32Attr(0))
	data.AddRtAttr(vnl.IFLA_BR_FORWARD_DELAY, vnl.Uint32Attr(0))
	if hasNetfilterCall(host.ns) {
		data.AddRtAttr(vnl.IFLA_BR_NF_CALL_IPTABLES, vnl.Uint8Attr(call))
		data.AddRtAttr(vnl.IFLA_BR_NF_CALL_IP6TABLES, vnl.Uint8Attr(call))
		data.AddRtAttr(vnl.IFLA_BR_NF_CALL_ARPTABLES, vnl.Uint8Attr(0))
	}
	request.AddData(linkInfo)
	err := host.ns.Do(func() error {
		_, err := request.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("configure bridge %q in %q: %w", name, host.ns.Name(), err)
	}
	if network.NetfilterCall {
		return nil // the bridge's own attribute is enough
	}
	return disableCallSysctls(host.ns)
}

// disableCallSysctls switches the netfilter call off for all bridges of ns.
func disableCallSysctls(ns *nl.Namespace) error {
	var sysctls []nl.Sysctl
	for _, table := range callTables() {
		sysctls = append(sysctls, nl.Sysctl{Key: callSysctl + table, Value: "0"})
	}
	return ns.SetSysctls(sysctls, func(_ nl.Sysctl, err error) bool { return errors.Is(err, fs.ErrNotExist) })
}

// hasNetfilterCall reports whether br_netfilter is there.
func hasNetfilterCall(ns *nl.Namespace) bool {
	_, err := ns.Sysctl(callSysctl + "iptables")
	return err == nil
}

// NetfilterCall reports whether packets that cross the bridge are passed through
// the rules of host for routed packets (iptables, nftables' ip and ip6 tables),
// be it by the bridge's own attribute or by the namespace's sysctl. It is an
// error if that differs between IPv4 and IPv6.
func NetfilterCall(host *nl.Namespace, bridge string) (bool, error) {
	v4, v6, err := netfilterCalls(host, bridge)
	if err != nil {
		return false, fmt.Errorf("read netfilter call of bridge %q in %q: %w", bridge, host.Name(), err)
	}
	if v4 != v6 {
		return false, fmt.Errorf("netfilter call of bridge %q in %q differs: IPv4 %t, IPv6 %t", bridge, host.Name(), v4, v6)
	}
	return v4, nil
}

func netfilterCalls(host *nl.Namespace, bridge string) (v4, v6 bool, err error) {
	s, err := openSide(host)
	if err != nil {
		return false, false, err
	}
	defer s.Close()
	link, err := s.link(bridge)
	if err != nil {
		return false, false, err
	}
	if link.Type() != "bridge" {
		return false, false, fmt.Errorf("it is a %s", link.Type())
	}
	if !hasNetfilterCall(host) {
		return false, false, nil
	}
	own, err := bridgeAttributes(host, link.Attrs().Index)
	if err != nil {
		return false, false, err
	}
	effective := func(attribute uint16, table string) (bool, error) {
		value, err := host.Sysctl(callSysctl + table)
		on := own[attribute]
		return value != "0" || len(on) == 1 && on[0] != 0, err
	}
	if v4, err = effective(vnl.IFLA_BR_NF_CALL_IPTABLES, "iptables"); err != nil {
		return false, false, err
	}
	v6, err = effective(vnl.IFLA_BR_NF_CALL_IP6TABLES, "ip6tables")
	return v4, v6, err
}

// bridgeAttributes reads a bridge's own attributes (IFLA_BR_...).
func bridgeAttributes(host *nl.Namespace, index int) (map[uint16][]byte, error) {
	request := vnl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	info := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	info.Index = int32(index)
	request.AddData(info)
	var messages [][]byte
	err := host.Do(func() (err error) {
		messages, err = request.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(messages) != 1 || len(messages[0]) < unix.SizeofIfInfomsg {
		return nil, fmt.Errorf("%d answers instead of 1", len(messages))
	}
	attributes, err := parseAttributes(messages[0][unix.SizeofIfInfomsg:])
	if err != nil {
		return nil, err
	}
	linkInfo, err := parseAttributes(attributes[unix.IFLA_LINKINFO])
	if err != nil {
		return nil, err
	}
	return parseAttributes(linkInfo[vnl.IFLA_INFO_DATA])
}

// parseAttributes splits netlink attributes.
func parseAttributes(data []byte) (map[uint16][]byte, error) {
	out := map[uint16][]byte{}
	for len(data) >= unix.SizeofRtAttr {
		length := int(binary.NativeEndian.Uint16(data))
		if length < unix.SizeofRtAttr || length > len(data) {
			return nil, errors.New("malformed netlink attribute")
		}
		kind := binary.NativeEndian.Uint16(data[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		out[kind] = data[unix.SizeofRtAttr:length]
		aligned := (length + unix.RTA_ALIGNTO - 1) &^ (unix.RTA_ALIGNTO - 1)
		data = data[min(aligned, len(data)):]
	}
	return out, nil
}

// netfilterCall notes whether the netfilter call is not as wanted.
func (c *checker) netfilterCall(network Network) {
	if c.err != nil {
		return
	}
	v4, v6, err := netfilterCalls(network.Host, network.bridge())
	if err != nil {
		c.err = err
		return
	}
	if want := network.NetfilterCall; v4 != want || v6 != want {
		c.add("netfilter call of bridge %q in %q is on for IPv4: %t, IPv6: %t; wanted: %t",
			network.bridge(), network.Host.Name(), v4, v6, want)
	}
}
