// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/vishvananda/netlink"

	"mustang/internal/ovs"
	"mustang/internal/rtnl"
)

// ovsPorts are the modes in which the host's end of each pod's link is a port of a bridge of Open vSwitch.
//
// On the user-space datapath the pod's device does not offload checksums and segmentation. Otherwise the packet
// socket of the switch, and so the receiver, would get wrong checksums. The same is up to a guest's program.
type ovsPorts struct {
	ovsMode
	linkType
}

// newOVSPorts switches between a type of links. Relayed ones are VMs: no pod has a namespace.
func newOVSPorts(name string, ends linkType) linkMode {
	t := ovsTraits(name)
	t.HostSide, t.Delivery, t.BigTCP = true, ends.delivery, !ends.relayed
	if ends.relayed {
		t.Guests, t.GuestsOnly, t.ResultLink = true, true, "tap"
	}
	return linkMode{name, ends.kind, t, []requirement{ends.requirement, ovsRequirement()}, ovsPorts{ovsMode{}, ends}}
}

func (o ovsPorts) create(at session) (Attachment, error) {
	return inSession(at, func(s ovsSession) (out Attachment, err error) {
		ends, err := o.add(s.session)
		if err != nil {
			return out, err
		}
		port := s.pod.HostIfName
		if err := apply(s.host.ns, ovsPortSettings(port)); err != nil {
			return out, err
		}
		if err := s.host.setUpOwn(ends.host); err != nil {
			return out, err
		}
		if ends.pod != nil && s.bridge.Datapath == ovs.UserSpace {
			if err := rtnl.In(s.inside.ns).DisableOffloads(ends.pod.Attrs().Name); err != nil {
				return out, err
			}
		}
		err = o.configure(s.session, ends, func() error {
			if err := s.sw.AddPort(s.bridge, ovs.Port{Name: port}); err != nil {
				return err
			}
			s.host.undo.add(func() error { _, err := s.sw.DeletePort(port); return err })
			return nil
		})
		return s.pod.attachment(ends, macOf(s.bridgeLink)), err
	})
}

func (o ovsPorts) check(c *checker, at session) {
	c.ovsPort(at, func(ovs.Bridge) {
		c.bothEnds(o.linkType, at, deviceSpec{settings: ovsPortSettings(at.pod.HostIfName)})
	})
}

func (o ovsPorts) remove(at session) error {
	s, err := openSwitch(at.Network)
	if err == nil {
		_, err = s.DeletePort(at.pod.HostIfName)
		s.Close()
	}
	return errors.Join(err, o.linkType.remove(at))
}

// ovsInternal is the mode in which each pod has an internal port of a bridge of Open vSwitch as its own device.
//
// Open vSwitch creates the device on the host with the port's name, Pod.HostIfName. It can't create it elsewhere, so
// this mode, unlike all others, moves a device that was on the host for a moment.
//
// On the user-space datapath the device then gets the name Pod.IfName. It is a TAP device that ovs-vswitchd holds
// open, so it ends with that process. If the pod's namespace ends, ovs-vswitchd keeps polling it until Delete. The
// MTU is at most 1500, which ovs-vswitchd assumes. On each change of its configuration, ovs-vswitchd looks for the
// device without success; a kernel with modules then looks for a module of that name.
//
// On the kernel's datapath a renamed device is lost to its switch: both the kernel and ovs-vswitchd find ports by the
// name of their device. There the device keeps the port's name, and has Pod.IfName as an alternative name, with which
// netlink finds it, but /sys and /proc do not. If the pod's namespace ends, ovs-vswitchd creates the device again, on
// the host and down, until Delete. If ovs-vswitchd does not answer a Delete, the device stays until ovs-vswitchd
// deletes it, or the namespace ends.
type ovsInternal struct{ ovsMode }

// maxUserSpaceMTU is the MTU that ovs-vswitchd assumes for a device that it can't find
// (ETH_PAYLOAD_MAX). It reads no more of a packet.
const maxUserSpaceMTU = 1500

// ovsTimeout is the time in which ovs-vswitchd deletes a device of its own:
// milliseconds, but seconds on a busy emulated processor.
const ovsTimeout = 5 * time.Second

func newOVSInternal() linkMode {
	const name = "ovs-internal"
	return linkMode{name, "", ovsTraits(name), []requirement{ovsRequirement()}, ovsInternal{}}
}

func (ovsInternal) deviceName(bridge ovs.Bridge, pod Pod) string {
	if bridge.Datapath == ovs.UserSpace {
		return pod.IfName
	}
	return pod.HostIfName
}

func (i ovsInternal) create(at session) (Attachment, error) { return inSession(at, i.createPort) }

func (i ovsInternal) createPort(s ovsSession) (out Attachment, err error) {
	network, pod, config := s.Network, s.pod, s.config
	if s.bridge.Datapath == ovs.UserSpace && network.mtu() > maxUserSpaceMTU {
		return out, fmt.Errorf("MTU %d is more than the %d that an internal port of the user-space datapath can have",
			network.mtu(), maxUserSpaceMTU)
	}
	err = errors.Join(s.host.checkNameFree(pod.HostIfName), s.inside.checkNameFree(pod.IfName),
		s.inside.checkNameFree(pod.HostIfName))
	if err != nil {
		return out, err
	}
	if err := s.sw.AddPort(s.bridge, ovs.Port{Name: pod.HostIfName, Type: "internal"}); err != nil {
		return out, err
	}
	s.host.undo.add(func() error { return i.removePort(s.sw, s.inside, pod) })
	link, err := i.moveDevice(s, pod, network.mtu())
	if err != nil {
		return out, err
	}
	// Such a device lacks an operational state: it can send as soon as it is up.
	if err := config.prepare(s.inside, link); err != nil {
		return out, err
	}
	if err := s.inside.addRoutes(link, config.routes); err != nil {
		return out, err
	}
	if err := s.inside.announce(link, config.addrs); err != nil {
		return out, err
	}
	return pod.attachment(linkEnds{pod: link}, macOf(s.bridgeLink)), nil
}

func (i ovsInternal) moveDevice(s ovsSession, pod Pod, mtu int) (netlink.Link, error) {
	name := i.deviceName(s.bridge, pod)
	link, err := s.host.link(pod.HostIfName)
	if err != nil {
		return nil, err
	}
	if err := s.host.LinkSetNsFd(link, pod.Namespace.FD()); err != nil {
		return nil, fmt.Errorf("move device %q from %q to %q: %w", pod.HostIfName, s.host.ns.Name(), s.inside.ns.Name(), err)
	}
	if link, err = s.inside.link(pod.HostIfName); err != nil {
		return nil, err
	}
	mac, err := pod.mac()
	if err != nil {
		return nil, err
	}
	if err := s.inside.setMAC(link, mac); err != nil {
		return nil, err
	}
	if err := s.inside.setMTU(link, mtu); err != nil {
		return nil, err
	}
	switch {
	case name == pod.IfName && name != pod.HostIfName:
		err = s.inside.LinkSetName(link, pod.IfName)
	case name != pod.IfName:
		err = s.inside.LinkAddAltName(link, pod.IfName)
	}
	if err != nil {
		return nil, fmt.Errorf("name device %q in %q: %w", pod.IfName, s.inside.ns.Name(), err)
	}
	return s.inside.link(name)
}

func (i ovsInternal) check(c *checker, at session) {
	c.ovsPort(at, func(bridge ovs.Bridge) {
		want := at.config.spec(at.pod) // its name may be an alternative one
		want.kind, want.settings = bridge.DeviceKind(), at.config.settings(i.deviceName(bridge, at.pod))
		c.device(at.inside, want)
	})
}

func (i ovsInternal) remove(at session) error {
	s, err := openSwitch(at.Network)
	if err != nil {
		return err
	}
	defer s.Close()
	return i.removePort(s, at.inside, at.pod)
}

// removePort deletes the port, and returns when the device left the pod. Another device than a switch's is an error.
func (ovsInternal) removePort(s *ovs.Switch, inside nsHandle, pod Pod) error {
	if inside.ns == nil {
		_, err := s.DeletePort(pod.HostIfName)
		return err
	}
	link, err := inside.link(pod.IfName)
	if errors.Is(err, fs.ErrNotExist) {
		link, err = inside.link(pod.HostIfName) // before it was renamed
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && kindOf(link) != "openvswitch" && kindOf(link) != "tun" {
		return fmt.Errorf("device %q in %q is not ours: it is a %s, not an internal port of Open vSwitch",
			link.Attrs().Name, inside.ns.Name(), link.Type())
	}
	if deleted, err := s.DeletePort(pod.HostIfName); err != nil || !deleted || link == nil {
		return err
	}
	for deadline := time.Now().Add(ovsTimeout); ; time.Sleep(time.Millisecond) {
		if _, err := inside.LinkByIndex(link.Attrs().Index); errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("device %q in %q outlives its port %q", pod.IfName, inside.ns.Name(), pod.HostIfName)
		}
	}
}
