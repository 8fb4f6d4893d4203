// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// callSysctl enables the netfilter call for all bridges of a namespace, as opposed to a bridge's own attribute:
// either suffices to pass a packet to netfilter. Setup leaves it as it is.
const callSysctl = "net/bridge/bridge-nf-call-"

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
			return UnsupportedError{
				Mode: "bridge", Feature: "netfilter call for bridges", Module: "br_netfilter", Since: "3.18",
			}.Here()
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
// switch it on. If the module br_netfilter is loaded, namespaces begin with it on. On a node kube-proxy and Docker
// rely on it.
func DisableNetfilterCall(ns *netns.Namespace) error {
	var sysctls []rtnl.Sysctl
	for _, table := range []string{"iptables", "ip6tables", "arptables"} {
		sysctls = append(sysctls, rtnl.Sysctl{Key: callSysctl + table, Value: "0"})
	}
	return rtnl.In(ns).SetSysctls(sysctls, func(_ rtnl.Sysctl, err error) bool { return errors.Is(err, fs.ErrNotExist) })
}

// changeLink sets attributes of a device that are specific to its kind and missing in the library.
func changeLink(ns *netns.Namespace, link netlink.Link, attributes ...*vnl.RtAttr) error {
	request := vnl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	info := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	info.Index = int32(link.Attrs().Index)
	linkInfo := vnl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	linkInfo.AddRtAttr(vnl.IFLA_INFO_KIND, vnl.NonZeroTerminated(link.Type()))
	data := linkInfo.AddRtAttr(vnl.IFLA_INFO_DATA, nil)
	for _, attribute := range attributes {
		data.AddChild(attribute)
	}
	request.AddData(info)
	request.AddData(linkInfo)
	return ns.Do(func() error {
		_, err := request.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
}
