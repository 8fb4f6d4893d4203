// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
)

// ovsVeth switches by Open vSwitch: each pod has a veth pair whose host end is a
// port of a bridge of Open vSwitch that has the gateways' addresses.
//
// In the user-space datapath the pod's device does not offload checksums and
// segmentation. A packet that a device hands on unfinished would reach a packet
// socket, and so the switch and the receiver, just so: with a wrong checksum.
type ovsVeth struct{ ovs }

func newOVSVeth() Mode { return ovsVeth{ovs{"ovs-veth"}} }

// HostSide is true: the switch's port.
func (ovsVeth) HostSide() bool { return true }

// Probe creates a veth pair, and looks for a datapath.
func (v ovsVeth) Probe() error { return probe(v.name, needsVeth(), needsOVS()) }

// Create makes a veth pair, and its end on the host a port of the bridge.
func (v ovsVeth) Create(network Network, pod Pod) (out Attachment, err error) {
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
	ends, err := vethPair{}.add(w.host, w.inside, network, pod)
	if err != nil {
		return Attachment{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.host.remove(pod.HostIfName, "veth"))
		}
	}()
	if err := apply(w.host.ns, ovsPortSettings(pod.HostIfName)); err != nil {
		return Attachment{}, err
	}
	if w.bridge.datapath() == OVSUserSpace {
		if err := w.inside.ns.FinishPackets(pod.IfName); err != nil {
			return Attachment{}, err
		}
	}
	if err := w.host.up(ends.host); err != nil {
		return Attachment{}, err
	}
	if err := interior.prepare(w.inside, ends.pod); err != nil {
		return Attachment{}, err
	}
	if err := w.host.awaitCarrier(ends.host); err != nil {
		return Attachment{}, err
	}
	if err := w.ovs.addPort(w.bridge, ovsdbRow{"name": pod.HostIfName}); err != nil {
		return Attachment{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.ovs.deletePort(pod.HostIfName))
		}
	}()
	if err := interior.finish(w.inside, ends.pod); err != nil {
		return Attachment{}, err
	}
	return interior.complete(ends.attachment(pod, macOf(w.master))), nil
}

// validate returns the configuration of a pod's device.
func (v ovsVeth) validate(network Network, pod Pod) (interior, error) {
	out, err := v.ovs.validate(network, pod)
	out.kind = "veth"
	return out, err
}

// Check compares the bridge, the port and both ends of the pair.
func (v ovsVeth) Check(network Network, pod Pod) (err error) {
	interior, err := v.validate(network, pod)
	if err != nil {
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
		name: pod.HostIfName, kind: "veth", mtu: network.mtu(), settings: ovsPortSettings(pod.HostIfName),
	})
	inner := c.device(w.inside, interior.wanted(pod))
	c.pair(w.host, w.inside, pair{port, inner})
	c.ovsPort(w, bridge, pod.HostIfName)
	if inner != nil && bridge.datapath() == OVSUserSpace {
		c.finishesPackets(w.inside.ns, pod.IfName)
	}
	return c.result(v, pod)
}

// Delete removes the port from the switch, and the pair.
func (v ovsVeth) Delete(network Network, pod Pod) error {
	return v.unplug(vethPair{}, network, pod)
}
