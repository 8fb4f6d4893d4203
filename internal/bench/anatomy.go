// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"mustang/internal/lab"
	"mustang/internal/podlink"
	"mustang/internal/result"
)

// delivery is how our programs bring a packet from one pod to another.
type delivery int

const (
	// byMAC: the packet goes on in the pods' shared segment, to another MAC address.
	byMAC delivery = iota
	// toPeer: from the host's side of one pod into the other (bpf_redirect_peer).
	toPeer
	// toHostSide: out of the host's side of the other pod (bpf_redirect).
	toHostSide
	// fromPeer: the same, but from before the packet has reached the host's side of
	// its own pod (netkit).
	fromPeer
)

// anatomy is what a link mode's packets pass on the host.
type anatomy struct {
	// sides is whether each pod has a device on the host, and all its packets pass
	// that.
	sides bool
	// shared is the host's device that packets pass which the host forwards from pod
	// to pod, in modes where pods can reach each other without it.
	shared string
	// byUplink is whether what a pod sends to the host comes in by the uplink itself
	// and not by the shared device.
	byUplink bool
	// delivery is that of our programs.
	delivery delivery
}

func (w witness) anatomy() anatomy {
	switch w.link {
	case "macvlan":
		return anatomy{shared: podlink.HostSlave, delivery: byMAC}
	case "ipvlan-l2", "ipvlan-l3", "ipvlan-l3s":
		return anatomy{shared: podlink.IPVLANHostSlave, byUplink: true, delivery: byMAC}
	case "ovs-internal":
		return anatomy{shared: podlink.DefaultBridge, delivery: byMAC}
	case "ovs-veth":
		if w.switching == podlink.OVSUserSpace {
			return anatomy{sides: true, delivery: byMAC}
		}
		return anatomy{sides: true, delivery: toPeer}
	case "netkit", "netkit-l2":
		return anatomy{sides: true, delivery: fromPeer}
	case "tap", "tun":
		return anatomy{sides: true, delivery: toHostSide}
	default:
		return anatomy{sides: true, delivery: toPeer}
	}
}

// checkDevices compares the packets at each device with those that the path has
// or must not have there.
func (w witness) checkDevices(add adder) {
	if w.route != nil {
		w.route.check(w, add)
		return
	}
	forth, back := w.packets()
	if w.target == result.TargetLoopback {
		w.on(add, device{lab.Host, "lo"}, forth, forth)
		w.off(add, device{lab.PodA, w.ifName(lab.PodA)}, both)
		return
	}
	w.on(add, device{lab.PodA, w.ifName(lab.PodA)}, forth, back)
	if w.client == lab.PodB {
		w.on(add, device{lab.PodB, w.ifName(lab.PodB)}, back, forth)
	}
	a := w.anatomy()
	if w.datapath() == result.DatapathEBPF {
		w.checkDelivery(add, a)
	} else if a.sides {
		w.on(add, device{lab.Host, lab.HostIfName(lab.PodA)}, back, forth)
		if w.client == lab.PodB {
			w.on(add, device{lab.Host, lab.HostIfName(lab.PodB)}, forth, back)
		}
	}
	switch {
	case a.shared == "":
		w.off(add, device{lab.Host, "lo"}, both)
	case w.byRules() && a.byUplink:
		w.on(add, device{lab.Host, a.shared}, back, forth+back)
	case w.byRules():
		w.on(add, device{lab.Host, a.shared}, forth+back, forth+back)
	default:
		w.off(add, device{lab.Host, a.shared}, both)
	}
}

// checkDelivery compares the packets at the host's side of the pods' links, of
// which our programs leave some out.
func (w witness) checkDelivery(add adder, a anatomy) {
	if !a.sides {
		return
	}
	forth, back := w.packets()
	sideA, sideB := lab.HostIfName(lab.PodA), lab.HostIfName(lab.PodB)
	switch a.delivery {
	case toPeer: // in at the one side, never out at the other
		w.on(add, device{lab.Host, sideB}, forth, 0)
		w.on(add, device{lab.Host, sideA}, back, 0)
		w.off(add, device{lab.Host, sideA}, sent)
		w.off(add, device{lab.Host, sideB}, sent)
	case fromPeer: // out at the other side, never in at the one
		w.on(add, device{lab.Host, sideA}, 0, forth)
		w.on(add, device{lab.Host, sideB}, 0, back)
		w.off(add, device{lab.Host, sideA}, received)
		w.off(add, device{lab.Host, sideB}, received)
	default:
		w.on(add, device{lab.Host, sideA}, back, forth)
		w.on(add, device{lab.Host, sideB}, forth, back)
	}
}

// ifName is the true name of a pod's device.
func (w witness) ifName(pod string) string {
	if name, ok := w.devices[pod]; ok {
		return name
	}
	return lab.IfName
}

// byRules reports whether the kernel's firewall rules translate the service, and
// so all packets pass the host's own address.
func (w witness) byRules() bool {
	return w.via == result.ViaIPTables || w.via == result.ViaNFTables
}

// way is a direction in which a device may count packets.
type way int

const (
	received way = 1
	sent     way = 2
	both         = received | sent
)

// on notes a device of the path that counted too few packets.
func (w witness) on(add adder, at device, rx, tx uint64) {
	if d := seen(w.evidence, at.place, at.name); d.RxPackets < rx || d.TxPackets < tx {
		add("too few packets at %s, the path has at least %d and %d", describe(d), rx, tx)
	}
}

// off notes a device that counted packets, but is not on the path.
func (w witness) off(add adder, at device, ways way) {
	d := seen(w.evidence, at.place, at.name)
	if (ways&received != 0 && d.RxPackets > w.stray()) || (ways&sent != 0 && d.TxPackets > w.stray()) {
		add("packets at %s, which is not on the path", describe(d))
	}
}
