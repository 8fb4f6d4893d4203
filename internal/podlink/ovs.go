// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/ovs"
	"mustang/internal/rtnl"
)

// ovsMode is the common part of the modes of Open vSwitch: a bridge whose own device has the gateways' addresses.
type ovsMode struct{}

func ovsTraits(name string) Traits {
	return Traits{
		Needs: NeedsOpenVSwitch, Switched: true, Bridge: true, HostDevice: DefaultBridge,
		Delivery: DeliverByMAC, ResultLink: name,
	}
}

// ovsRequirement is met by either datapath: that in user space needs TAP devices.
func ovsRequirement() requirement {
	return requirement{
		feature: "datapath of Open vSwitch nor TAP devices", module: "openvswitch or tun", since: "3.3",
		try: func(h nsHandle) error {
			if ovs.CheckKernel(h.ns) == nil {
				return nil
			}
			if err := ovs.CheckUserSpace(); err != nil {
				return errors.Join(unix.EOPNOTSUPP, err)
			}
			return nil
		},
	}
}

// setup adds the bridge with the gateways' addresses, enables forwarding, and adds the ports to other hosts.
func (o ovsMode) setup(host nsHandle, network Network) (err error) {
	s, err := openSwitch(network)
	if err != nil {
		return err
	}
	defer s.Close()
	defer host.undo.onError(&err) // before the connection closes
	link, created, err := o.ensureBridge(host, s, network)
	if err != nil {
		return err
	}
	if err := host.setUpHostDevice(link, network.bridgeSpec(""), created); err != nil {
		return err
	}
	return o.addHostPorts(s, host, network)
}

func (o ovsMode) ensureBridge(host nsHandle, s *ovs.Switch, network Network) (link netlink.Link, created bool,
	err error) {
	name := network.bridge()
	bridge, err := s.Bridge(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	if err == nil {
		link, err := host.link(name)
		switch {
		case err == nil && kindOf(link) != bridge.DeviceKind():
			return nil, false, fmt.Errorf("device %q in %q is a %s, not the bridge of Open vSwitch: %w",
				name, host.ns.Name(), kindOf(link), fs.ErrExist)
		case err == nil:
			return link, false, nil
		}
		return nil, false, err
	}
	if err := host.checkNameFree(name); err != nil {
		return nil, false, err
	}
	datapath, err := s.BestDatapath(host.ns)
	if err != nil {
		return nil, false, err
	}
	mac, err := newMAC()
	if err != nil {
		return nil, false, err
	}
	host.undo.add(func() error { return o.removeBridge(s, network) })
	err = s.AddBridge(ovs.BridgeSpec{Name: name, Datapath: datapath, MAC: mac.String(), MTU: network.mtu()})
	if err == nil {
		link, err = host.link(name)
	}
	return link, true, err
}

// addHostPorts makes the network's uplink port and VXLAN ports of its bridge, unless they are. Open vSwitch removes
// the queueing disciplines of the uplink port, but none that it gets later.
func (ovsMode) addHostPorts(s *ovs.Switch, host nsHandle, network Network) error {
	bridge, err := s.Bridge(network.bridge())
	if err != nil {
		return err
	}
	if v := network.VXLAN; v.enabled() {
		port := ovs.Port{Name: VXLANDevice, Type: "vxlan", Options: map[string]string{
			"remote_ip": v.Remote.String(), "local_ip": v.Local.String(), "key": fmt.Sprint(v.ID),
		}}
		if err := s.EnsurePort(bridge, port); err != nil {
			return err
		}
	}
	if network.UplinkPort == "" {
		return nil
	}
	port, err := host.link(network.UplinkPort)
	if err != nil {
		return fmt.Errorf("uplink port: %w", err)
	}
	if err := apply(host.ns, ovsPortSettings(network.UplinkPort)); err != nil {
		return err
	}
	if err := host.setUpHostPort(port); err != nil {
		return err
	}
	return s.EnsurePort(bridge, ovs.Port{Name: network.UplinkPort})
}

// ovsPortSettings keep a port out of the host's own network. The user-space datapath only captures the packets of its
// ports, so the host receives them too: it would answer ARP for its addresses there, past the switch.
func ovsPortSettings(name string) []rtnl.Sysctl {
	return append(portSettings(name), rtnl.Sysctl{Key: "net/ipv4/conf/" + name + "/arp_ignore", Value: "8"})
}

func (o ovsMode) teardown(_ nsHandle, network Network) error {
	s, err := openSwitch(network)
	if err != nil {
		return err
	}
	defer s.Close()
	return o.removeBridge(s, network)
}

func (ovsMode) removeBridge(s *ovs.Switch, network Network) error {
	bridge, err := s.Bridge(network.bridge())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !bridge.Owned {
		return fmt.Errorf("bridge %q of Open vSwitch is not ours", network.bridge())
	}
	return s.DeleteBridge(bridge)
}

// ovsSession is a session with the switch, for create with its bridge.
type ovsSession struct {
	session
	sw         *ovs.Switch
	bridge     ovs.Bridge
	bridgeLink netlink.Link
}

func inSession(at session, create func(ovsSession) (Attachment, error)) (out Attachment, err error) {
	s := ovsSession{session: at}
	if s.sw, err = openSwitch(at.Network); err != nil {
		return out, err
	}
	defer s.sw.Close()
	defer s.host.undo.onError(&err) // before the connection closes
	name := s.Network.bridge()
	if s.bridge, err = s.sw.Bridge(name); err != nil {
		return out, err
	}
	if s.bridgeLink, err = s.host.link(name); err != nil {
		return out, err
	}
	if s.bridge.Datapath == ovs.UserSpace { // the switch reads the packets
		s.host.bigTCP, s.inside.bigTCP = false, false
	}
	return create(s)
}

func (c *checker) ovsPort(s session, devices func(ovs.Bridge)) {
	sw, err := openSwitch(s.Network)
	if err != nil {
		c.fail(err)
		return
	}
	defer sw.Close()
	name := s.Network.bridge()
	bridge, err := sw.Bridge(name)
	if errors.Is(err, fs.ErrNotExist) {
		c.add("bridge %q is missing in the database of Open vSwitch", name)
	} else {
		c.fail(err)
	}
	c.device(s.host, s.bridgeSpec(bridge.DeviceKind()).withForwarding())
	devices(bridge)
	deviation, err := sw.CheckPort(bridge, s.pod.HostIfName)
	if c.fail(err); deviation != "" {
		c.add("%s", deviation)
	}
}
