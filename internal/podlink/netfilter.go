// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// callSysctl enables the netfilter call for all bridges of a namespace, as opposed to a bridge's own attribute:
// either suffices to pass a packet to netfilter. Setup leaves it as it is.
const callSysctl = "net/bridge/bridge-nf-call-"

// hasNetfilterCall reports whether br_netfilter is loaded.
func hasNetfilterCall(ns *netns.Namespace) bool {
	_, err := rtnl.In(ns).Sysctl(callSysctl + "iptables")
	return err == nil
}

// configureBridge configures a bridge: no spanning tree, no forward delay, the MTU and the netfilter call.
func configureBridge(host nsHandle, link netlink.Link, network Network) error {
	name := link.Attrs().Name
	available, call := hasNetfilterCall(host.ns), byte(0)
	if network.NetfilterCall {
		call = 1
		if !available {
			return &UnsupportedError{
				Mode: "bridge", Feature: "netfilter call for bridges", Module: "br_netfilter", Since: "3.18",
				Kernel: kernelRelease(),
			}
		}
	}
	if link.Attrs().MTU != network.mtu() {
		if err := host.setMTU(link, network.mtu()); err != nil {
			return err
		}
	}
	attributes := []*vnl.RtAttr{
		vnl.NewRtAttr(vnl.IFLA_BR_STP_STATE, vnl.Uint32Attr(0)),
		vnl.NewRtAttr(vnl.IFLA_BR_FORWARD_DELAY, vnl.Uint32Attr(0)),
	}
	if available {
		attributes = append(attributes, vnl.NewRtAttr(vnl.IFLA_BR_NF_CALL_IPTABLES, vnl.Uint8Attr(call)),
			vnl.NewRtAttr(vnl.IFLA_BR_NF_CALL_IP6TABLES, vnl.Uint8Attr(call)),
			vnl.NewRtAttr(vnl.IFLA_BR_NF_CALL_ARPTABLES, vnl.Uint8Attr(0)))
	}
	if err := changeLink(host.ns, link, attributes...); err != nil {
		return fmt.Errorf("configure bridge %q in %q: %w", name, host.ns.Name(), err)
	}
	return nil
}

// DisableNetfilterCall switches off the netfilter call for all bridges of a namespace whose own attribute does not
// switch it on. Namespaces begin with it on, where the module br_netfilter is loaded. On a node others rely on it:
// kube-proxy, Docker.
func DisableNetfilterCall(ns *netns.Namespace) error {
	var sysctls []rtnl.Sysctl
	for _, table := range []string{"iptables", "ip6tables", "arptables"} {
		sysctls = append(sysctls, rtnl.Sysctl{Key: callSysctl + table, Value: "0"})
	}
	return rtnl.In(ns).SetSysctls(sysctls, func(_ rtnl.Sysctl, err error) bool { return errors.Is(err, fs.ErrNotExist) })
}

// netfilterCalls reports whether a bridge's own attribute passes its packets through the rules of host for routed
// packets (iptables, nftables' ip and ip6 tables). The namespace's sysctls may do so as well. The library does not know
// the attributes.
func netfilterCalls(host *netns.Namespace, bridge string) (v4, v6 bool, err error) {
	defer wrap(&err, fmt.Sprintf("read netfilter call of bridge %q in %q", bridge, host.Name()))
	device, err := rtnl.In(host).Device(bridge)
	if err != nil || !hasNetfilterCall(host) {
		return false, false, err
	}
	if device.Kind != "bridge" {
		return false, false, fmt.Errorf("it is a %s", device.Kind)
	}
	messages, err := requestLink(host, unix.RTM_GETLINK, device.Index)
	if err != nil || len(messages) != 1 || len(messages[0]) < unix.SizeofIfInfomsg {
		return false, false, cmp.Or(err, fmt.Errorf("%d netlink answers, want 1", len(messages)))
	}
	data := messages[0][unix.SizeofIfInfomsg:]
	var own map[uint16]syscall.NetlinkRouteAttr
	for _, nested := range []uint16{unix.IFLA_LINKINFO, vnl.IFLA_INFO_DATA, 0} {
		if own, err = vnl.ParseRouteAttrAsMap(data); err != nil {
			return false, false, err
		}
		data = own[nested].Value
	}
	isOn := func(attribute uint16) bool { return slices.Equal(own[attribute].Value, []byte{1}) }
	return isOn(vnl.IFLA_BR_NF_CALL_IPTABLES), isOn(vnl.IFLA_BR_NF_CALL_IP6TABLES), nil
}

// changeLink sets attributes of a device that only its kind has.
func changeLink(ns *netns.Namespace, link netlink.Link, attributes ...*vnl.RtAttr) error {
	linkInfo := vnl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	linkInfo.AddRtAttr(vnl.IFLA_INFO_KIND, vnl.NonZeroTerminated(link.Type()))
	data := linkInfo.AddRtAttr(vnl.IFLA_INFO_DATA, nil)
	for _, attribute := range attributes {
		data.AddChild(attribute)
	}
	_, err := requestLink(ns, unix.RTM_NEWLINK, link.Attrs().Index, linkInfo)
	return err
}

// requestLink sends a request about a device to the kernel.
func requestLink(ns *netns.Namespace, kind, index int, data ...*vnl.RtAttr) (messages [][]byte, err error) {
	request := vnl.NewNetlinkRequest(kind, unix.NLM_F_ACK)
	info := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	info.Index = int32(index)
	request.AddData(info)
	for _, attribute := range data {
		request.AddData(attribute)
	}
	err = ns.Do(func() (err error) {
		messages, err = request.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	return messages, err
}

// netfilterCall checks the netfilter call.
func (c *checker) netfilterCall(network Network) {
	v4, v6, err := netfilterCalls(network.Host, network.bridge())
	c.fail(err)
	if want := network.NetfilterCall; err == nil && (v4 != want || v6 != want) {
		c.add("netfilter call of bridge %q in %q is on for IPv4: %t, IPv6: %t; want: %t",
			network.bridge(), network.Host.Name(), v4, v6, want)
	}
}
