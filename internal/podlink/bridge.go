// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// bridged are the modes in which the host's end of each pod's link is a port of a
// Linux bridge, whose own device has the gateways' addresses.
type bridged struct{ linkType }

func newBridged(name string, ends linkType, rank int) linkMode {
	traits := Traits{
		Needs: ends.needs(), HostSide: true, Switched: true, Bridge: true, NetfilterCall: true, HostDevice: DefaultBridge,
		Delivery: ends.delivery, BigTCP: !ends.relayed, DHCP: !ends.relayed, Guests: ends.relayed, AutoRank: rank,
		ResultLink: name,
	}
	bridge := requirement{
		feature: "bridge devices", module: "bridge", since: "2.6.0",
		try: func(h nsHandle) error { return h.LinkAdd(&netlink.Bridge{LinkAttrs: newAttrs("probe2")}) },
	}
	return linkMode{name, ends.kind, traits, []requirement{ends.requirement, bridge}, bridged{ends}}
}

// setup creates the bridge with the gateways' addresses, enables or disables the netfilter call, enables forwarding,
// and adds the ports to other hosts.
func (b bridged) setup(host nsHandle, network Network) error {
	link, created, err := b.ensureBridge(host, network)
	if err != nil {
		return err
	}
	if err := host.setUpHostDevice(link, network.bridgeSpec("bridge"), created); err != nil {
		return err
	}
	return host.addHostPorts(link, network)
}

func (b bridged) ensureBridge(host nsHandle, network Network) (link netlink.Link, created bool, err error) {
	name := network.bridge()
	link, err = host.link(name)
	if err == nil {
		if link.Type() != "bridge" {
			return nil, false, fmt.Errorf("device %q in %q is a %s, not a bridge: %w",
				name, host.ns.Name(), link.Type(), fs.ErrExist)
		}
		return link, false, configureBridge(host, link, network)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	device := &netlink.Bridge{LinkAttrs: newAttrs(name)}
	if host.bigTCP && !b.relayed {
		device.GROIPv4MaxSize = rtnl.BigTCPBytes // see ensureUpBridge
	}
	if device.HardwareAddr, err = newMAC(); err != nil {
		return nil, false, err
	}
	err = host.LinkAdd(device)
	if errors.Is(err, unix.EEXIST) { // a concurrent Setup was faster
		return b.ensureBridge(host, network)
	}
	if err != nil {
		return nil, false, addError(err, name, "bridge", host.ns)
	}
	host.undo.add(func() error { return host.remove(name, "bridge") })
	if link, err = host.link(name); err == nil {
		err = configureBridge(host, link, network)
	}
	return link, true, err
}

func (bridged) teardown(host nsHandle, network Network) error {
	err := host.remove(network.bridge(), "bridge")
	if network.VXLAN.enabled() {
		err = errors.Join(err, host.remove(VXLANDevice, "vxlan"))
	}
	return err
}

func (b bridged) create(s session) (out Attachment, err error) {
	bridge, err := s.host.link(s.bridge())
	if err != nil {
		return out, err
	}
	ends, err := b.ensureEnds(s, bridge)
	if err != nil {
		return out, err
	}
	err = b.configure(s, ends, func() error {
		if b.relayed {
			return nil
		}
		return s.host.awaitCarrier(bridge) // it has one since a port has
	})
	return s.pod.attachment(ends, macOf(bridge)), err
}

// ensureEnds creates the pod's two ends, the host's as a port of the bridge. For a Linked pod it finds them.
func (b bridged) ensureEnds(s session, bridge netlink.Link) (ends linkEnds, err error) {
	if s.pod.Linked {
		if ends.host, err = s.host.link(s.pod.HostIfName); err == nil {
			ends.pod, err = s.inside.link(s.pod.IfName)
		}
		return ends, err
	}
	if ends, err = b.add(s); err == nil {
		err = b.addPort(s.host, ends.host, bridge)
	}
	if err == nil {
		err = s.host.ensureUpBridge(bridge)
	}
	return ends, err
}

// addPort makes a device a port of the bridge, and sets it up. Hairpin mode lets a pod reach itself through a service
// that has it as a backend.
func (b bridged) addPort(host nsHandle, port, bridge netlink.Link) error {
	if err := host.setMaster(port, bridge); err != nil {
		return err
	}
	if err := host.LinkSetHairpin(port, true); err != nil {
		return fmt.Errorf("set hairpin mode of device %q in %q: %w", port.Attrs().Name, host.ns.Name(), err)
	}
	return host.setUpOwn(port)
}

func (b bridged) check(c *checker, s session) {
	bridge := c.device(s.host, s.bridgeSpec("bridge").withForwarding())
	port := c.bothEnds(b.linkType, s, deviceSpec{settings: portSettings(s.pod.HostIfName)}).host
	if bridge == nil || port == nil {
		return
	}
	name, host := port.Attrs().Name, s.host.ns.Name()
	info, err := s.host.LinkGetProtinfo(port)
	switch {
	case port.Attrs().MasterIndex != bridge.Attrs().Index:
		c.add("device %q in %q is not a port of %q", name, host, bridge.Attrs().Name)
	case err != nil:
		c.fail(fmt.Errorf("read port settings of device %q in %q: %w", name, host, err))
	case !info.Hairpin:
		c.add("hairpin mode of device %q in %q is off", name, host)
	}
}

func (h nsHandle) addHostPorts(bridge netlink.Link, network Network) error {
	if network.VXLAN.enabled() {
		if err := h.addVXLANPort(bridge, network); err != nil {
			return err
		}
	}
	if network.UplinkPort == "" {
		return nil
	}
	port, err := h.link(network.UplinkPort)
	if err != nil {
		return fmt.Errorf("uplink port: %w", err)
	}
	if other := port.Attrs().MasterIndex; other != 0 && other != bridge.Attrs().Index {
		return fmt.Errorf("uplink port %q in %q is a port of another switch: %w", network.UplinkPort, h.ns.Name(),
			fs.ErrExist)
	}
	if err := h.setMaster(port, bridge); err != nil {
		return err
	}
	return h.setUpHostPort(port)
}

func (h nsHandle) setMaster(port, bridge netlink.Link) error {
	name := port.Attrs().Name
	if err := apply(h.ns, portSettings(name)); err != nil {
		return err
	}
	return h.failed(h.LinkSetMaster(port, bridge), name, "make %s a port of %q", bridge.Attrs().Name)
}

// setUpHostPort sets a port to another host up, and returns when it can send. Only veth devices report that.
func (h nsHandle) setUpHostPort(port netlink.Link) error {
	if err := h.setUp(port); err != nil {
		return err
	}
	if kindOf(port) != "veth" {
		return nil
	}
	return h.awaitCarrier(port)
}

func (h nsHandle) addVXLANPort(bridge netlink.Link, network Network) error {
	link, err := h.link(VXLANDevice)
	if errors.Is(err, fs.ErrNotExist) {
		if link, err = h.addVXLAN(network); errors.Is(err, unix.EEXIST) { // a concurrent Setup was faster
			link, err = h.link(VXLANDevice)
		}
	}
	if err != nil {
		return err
	}
	if deviation := network.VXLAN.deviation(link); deviation != "" {
		return fmt.Errorf("device %q in %q %s: %w", VXLANDevice, h.ns.Name(), deviation, fs.ErrExist)
	}
	if err := h.setMTU(link, network.mtu()); err != nil {
		return err
	}
	if err := h.setMaster(link, bridge); err != nil {
		return err
	}
	return h.setUpHostPort(link)
}

func (h nsHandle) addVXLAN(network Network) (netlink.Link, error) {
	v := network.VXLAN
	device := &netlink.Vxlan{
		LinkAttrs: network.attrs(VXLANDevice), VxlanId: v.ID, SrcAddr: v.Local.AsSlice(), Group: v.Remote.AsSlice(),
		Port: VXLANPort, Learning: false,
	}
	var err error
	if device.HardwareAddr, err = newMAC(); err != nil {
		return nil, err
	}
	err = h.LinkAdd(device)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = UnsupportedError{Mode: "bridge", Feature: "VXLAN devices", Module: "vxlan", Since: "3.7", Err: err}.Here()
	}
	if err != nil {
		return nil, addError(err, VXLANDevice, "vxlan", h.ns)
	}
	h.undo.add(func() error { return h.remove(VXLANDevice, "vxlan") })
	return h.link(VXLANDevice)
}

// deviation is the difference of a device from the tunnel's, or empty.
func (v VXLAN) deviation(link netlink.Link) string {
	device, ok := link.(*netlink.Vxlan)
	switch {
	case !ok:
		return "is a " + kindOf(link) + ", not a vxlan"
	case device.VxlanId != v.ID:
		return fmt.Sprintf("has VXLAN id %d, not %d", device.VxlanId, v.ID)
	case device.Learning:
		return "has learning enabled"
	}
	for _, end := range []struct {
		have net.IP
		want netip.Addr
	}{{device.SrcAddr, v.Local}, {device.Group, v.Remote}} {
		if have, _ := netip.AddrFromSlice(end.have); have.Unmap() != end.want {
			return fmt.Sprintf("has VXLAN end %v, not %v", have.Unmap(), end.want)
		}
	}
	return ""
}

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
// switch it on. If the module br_netfilter is loaded, namespaces begin with it on. kube-proxy and Docker rely on it.
func DisableNetfilterCall(ns *netns.Namespace) error {
	var sysctls []rtnl.Sysctl
	for _, table := range []string{"iptables", "ip6tables", "arptables"} {
		sysctls = append(sysctls, rtnl.Sysctl{Key: callSysctl + table, Value: "0"})
	}
	return rtnl.In(ns).SetSysctls(sysctls, func(_ rtnl.Sysctl, err error) bool { return errors.Is(err, fs.ErrNotExist) })
}

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
