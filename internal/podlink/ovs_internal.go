// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
)

// ovsInternal switches by Open vSwitch without a pair of devices: each pod has an
// internal port of a bridge as its own device.
//
// Open vSwitch makes the device on the host, by the port's name, Pod.HostIfName.
// It can't make it elsewhere: so this mode, other than all others, moves a device
// that was on the host for a moment.
//
// In the user-space datapath the device then gets its name, Pod.IfName. It is a
// TAP device that ovs-vswitchd holds open, so it ends with that process, and if
// the pod's namespace ends ovs-vswitchd is busy reading from nothing until
// Delete. The MTU is at most 1500, which ovs-vswitchd takes it to be. It asks for
// the device, which it no longer finds, whenever its configuration changes; a
// kernel with modules then looks for one of that name each time.
//
// In the kernel's datapath a device that is renamed is lost to its switch: both
// the kernel and ovs-vswitchd find ports by the name of their device. There the
// device keeps the port's name, and has Pod.IfName as an alternative name, by
// which netlink finds it, but /sys and /proc do not. Attachment.IfName is the
// device's true name. If the pod's namespace ends, ovs-vswitchd makes the device
// anew, on the host and down, until Delete.
type ovsInternal struct{ ovs }

// maxUserSpaceMTU is what ovs-vswitchd takes the MTU of a device to be that it
// can't find (ETH_PAYLOAD_MAX). It reads no more of a packet.
const maxUserSpaceMTU = 1500

func newOVSInternal() Mode { return ovsInternal{ovs{"ovs-internal"}} }

// HostSide is false: the port is in the pod.
func (ovsInternal) HostSide() bool { return false }

// Probe looks for a datapath.
func (i ovsInternal) Probe() error { return probe(i.name, needsOVS()) }

// trueName is the name of the pod's device.
func (ovsInternal) trueName(bridge ovsBridge, pod Pod) string {
	if bridge.datapath() == OVSUserSpace {
		return pod.IfName
	}
	return pod.HostIfName
}

// Create adds an internal port and moves its device into the pod's namespace.
func (i ovsInternal) Create(network Network, pod Pod) (out Attachment, err error) {
	defer wrap(&err, "create "+i.name+" link")
	interior, err := i.validate(network, pod)
	if err != nil {
		return Attachment{}, err
	}
	w, err := openPlugging(network, pod)
	if err != nil {
		return Attachment{}, err
	}
	defer w.close()
	if w.bridge.datapath() == OVSUserSpace && network.mtu() > maxUserSpaceMTU {
		return Attachment{}, fmt.Errorf("MTU %d is more than the %d that an internal port of the user-space datapath can have",
			network.mtu(), maxUserSpaceMTU)
	}
	if err := i.freeNames(w.ovsWork, pod); err != nil {
		return Attachment{}, err
	}
	if err := w.ovs.addPort(w.bridge, ovsdbRow{"name": pod.HostIfName, "type": "internal"}); err != nil {
		return Attachment{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, i.remove(w.ovs, w.inside, pod))
		}
	}()
	link, err := i.move(w.ovsWork, pod, i.trueName(w.bridge, pod), network.mtu())
	if err != nil {
		return Attachment{}, err
	}
	if err := i.configure(w.inside, link, interior); err != nil {
		return Attachment{}, err
	}
	return interior.complete(Attachment{
		IfName:    link.Attrs().Name,
		IfIndex:   link.Attrs().Index,
		MAC:       macOf(link),
		Addresses: slices.Clone(pod.Addresses),
		NodeMAC:   macOf(w.master),
	}), nil
}

// freeNames is an error that matches fs.ErrExist if a name is taken.
func (ovsInternal) freeNames(w ovsWork, pod Pod) error {
	return errors.Join(w.host.mustBeFree(pod.HostIfName), w.inside.mustBeFree(pod.IfName), w.inside.mustBeFree(pod.HostIfName))
}

// move moves the port's device into the pod, where it gets its name and its MAC
// address.
func (ovsInternal) move(w ovsWork, pod Pod, name string, mtu int) (netlink.Link, error) {
	link, err := w.host.link(pod.HostIfName)
	if err != nil {
		return nil, err
	}
	if err := w.host.LinkSetNsFd(link, pod.Namespace.FD()); err != nil {
		return nil, fmt.Errorf("move device %q from %q to %q: %w", pod.HostIfName, w.host.ns.Name(), w.inside.ns.Name(), err)
	}
	if link, err = w.inside.link(pod.HostIfName); err != nil {
		return nil, err
	}
	mac, err := pod.mac()
	if err != nil {
		return nil, err
	}
	if err := w.inside.LinkSetHardwareAddr(link, mac); err != nil {
		return nil, fmt.Errorf("set MAC address of device %q in %q: %w", pod.HostIfName, w.inside.ns.Name(), err)
	}
	if err := w.inside.LinkSetMTU(link, mtu); err != nil {
		return nil, fmt.Errorf("set MTU of device %q in %q to %d: %w", pod.HostIfName, w.inside.ns.Name(), mtu, err)
	}
	switch {
	case name == pod.IfName && name != pod.HostIfName:
		err = w.inside.LinkSetName(link, pod.IfName)
	case name != pod.IfName:
		err = w.inside.LinkAddAltName(link, pod.IfName)
	}
	if err != nil {
		return nil, fmt.Errorf("name device %q in %q: %w", pod.IfName, w.inside.ns.Name(), err)
	}
	return w.inside.link(name)
}

// configure configures the device in the pod. Such a device has no operational
// state: it can send as soon as it is up.
func (ovsInternal) configure(inside side, link netlink.Link, interior interior) error {
	if err := interior.prepare(inside, link); err != nil {
		return err
	}
	if err := inside.addRoutes(link, interior.routes); err != nil {
		return err
	}
	return inside.announce(link, interior.addrs)
}

// Check compares the bridge, the port and the pod's device.
func (i ovsInternal) Check(network Network, pod Pod) (err error) {
	interior, err := i.validate(network, pod)
	if err != nil {
		return fmt.Errorf("check %s link: %w", i.name, err)
	}
	w, err := openWork(network, pod)
	if err != nil {
		return fmt.Errorf("check %s link: %w", i.name, err)
	}
	defer w.close()
	var c checker
	bridge := c.ovsBridge(w, network)
	want := interior.wanted(pod) // the name may be an alternative one
	want.kind, want.settings = bridge.internalKind(), interior.settings(i.trueName(bridge, pod))
	c.device(w.inside, want)
	c.ovsPort(w, bridge, pod.HostIfName)
	return c.result(i, pod)
}

// Delete removes the port from the switch, and with it the device, wherever it
// is.
func (i ovsInternal) Delete(network Network, pod Pod) (err error) {
	defer wrap(&err, "delete "+i.name+" link")
	if err := pod.validateDelete(network); err != nil {
		return err
	}
	s, err := openSwitch(network)
	if err != nil {
		return err
	}
	defer s.close()
	if pod.Namespace == nil {
		return s.deletePort(pod.HostIfName)
	}
	inside, err := pod.openInside()
	if err != nil {
		return err
	}
	defer inside.Close()
	return i.remove(s, inside, pod)
}

// remove deletes the port, and returns when its device has left the pod. It is an
// error if the pod's device is none of a switch.
func (ovsInternal) remove(s ovsSwitch, inside side, pod Pod) error {
	link, err := inside.link(pod.IfName)
	if errors.Is(err, fs.ErrNotExist) {
		link, err = inside.link(pod.HostIfName) // it has not got its name yet
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && kindOf(link) != "openvswitch" && kindOf(link) != "tun" {
		return fmt.Errorf("device %q in %q is not ours: it is a %s, not an internal port of Open vSwitch",
			link.Attrs().Name, inside.ns.Name(), link.Type())
	}
	if _, err := s.port(pod.HostIfName); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := s.deletePort(pod.HostIfName); err != nil || link == nil {
		return err
	}
	for deadline := time.Now().Add(ovsdbTimeout); ; time.Sleep(daemonPoll) {
		if _, err := inside.LinkByIndex(link.Attrs().Index); errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("device %q in %q outlives its port %q", pod.IfName, inside.ns.Name(), pod.HostIfName)
		}
	}
}
