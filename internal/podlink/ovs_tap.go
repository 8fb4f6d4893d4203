// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// ovsTap switches by Open vSwitch between TAP devices that programs have the
// other ends of: VMs. It has no relay, so there is no end in a namespace.
//
// In the user-space datapath the program must finish its packets (no offloads):
// they reach the switch by a packet socket, just as they are.
type ovsTap struct{ ovs }

func newOVSTap() Mode { return ovsTap{ovs{"ovs-tap"}} }

// ends is how the switch's ports are made.
func (ovsTap) ends() tuntapEnds { return tuntapEnds{mode: netlink.TUNTAP_MODE_TAP} }

// HostSide is true: the switch's port.
func (ovsTap) HostSide() bool { return true }

// Probe creates a TAP device, and looks for a datapath.
func (v ovsTap) Probe() error { return probe(v.name, v.ends().requires(), needsOVS()) }

// Create makes a TAP device, and it a port of the bridge.
func (v ovsTap) Create(network Network, pod Pod) (out Attachment, err error) {
	defer wrap(&err, "create "+v.name+" link")
	interior, err := v.validate(network, pod)
	if err != nil {
		return Attachment{}, err
	}
	w, err := openPlugging(network, pod)
	if err != nil {
		return Attachment{}, err
	}
	defer w.close()
	ends, err := v.ends().add(w.host, w.inside, network, pod)
	if err != nil {
		return Attachment{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.host.remove(pod.HostIfName, v.ends().kind()))
		}
	}()
	if err := apply(w.host.ns, ovsPortSettings(pod.HostIfName)); err != nil {
		return Attachment{}, err
	}
	if err := w.host.up(ends.host); err != nil {
		return Attachment{}, err
	}
	if err := w.ovs.addPort(w.bridge, ovsdbRow{"name": pod.HostIfName}); err != nil {
		return Attachment{}, err
	}
	return interior.complete(ends.attachment(pod, macOf(w.master))), nil
}

// validate returns how a guest is to configure its device.
func (v ovsTap) validate(network Network, pod Pod) (interior, error) {
	if err := v.validateNetwork(network); err != nil {
		return interior{}, err
	}
	if pod.Namespace != nil {
		return interior{}, errors.New("the pod has a namespace, and is to bring its own end of the link")
	}
	if err := pod.validateAddresses(network); err != nil {
		return interior{}, err
	}
	if err := pod.validateHostIfName(); err != nil {
		return interior{}, err
	}
	return interior{mtu: network.mtu()}.onGateways(network, pod)
}

// Check compares the bridge and the port.
func (v ovsTap) Check(network Network, pod Pod) (err error) {
	if _, err := v.validate(network, pod); err != nil {
		return fmt.Errorf("check %s link: %w", v.name, err)
	}
	w, err := openWork(network, pod)
	if err != nil {
		return fmt.Errorf("check %s link: %w", v.name, err)
	}
	defer w.close()
	var c checker
	bridge := c.ovsBridge(w, network)
	port := c.device(w.host, wanted{
		name: pod.HostIfName, kind: v.ends().kind(), mtu: network.mtu(), settings: ovsPortSettings(pod.HostIfName),
	})
	v.ends().check(&c, w.host, w.inside, pair{host: port})
	c.ovsPort(w, bridge, pod.HostIfName)
	return c.result(v, pod)
}

// Delete removes the port from the switch, and the device.
func (v ovsTap) Delete(network Network, pod Pod) error {
	return v.unplug(v.ends(), network, pod)
}
