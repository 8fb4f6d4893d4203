// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
)

// AttachPoint is a place that programs are attached to. Each has its own instance of the packet programs.
type AttachPoint string

// The attach points.
const (
	AttachHost   AttachPoint = "host"   // the host's device of a pod's link, which has an Ethernet header
	AttachTun    AttachPoint = "tun"    // the host's device of a pod's link, which has none
	AttachNetkit AttachPoint = "netkit" // the host's device of a pod's link, by netkit
	AttachPod    AttachPoint = "pod"    // the pod's own device
	AttachUplink AttachPoint = "uplink" // a device of the host that leads outside
	// Where packets come that pods can send past the guard on their own devices.
	AttachParent   AttachPoint = "parent"   // packets that leave the host's device below pods' devices
	AttachEntrance AttachPoint = "entrance" // a device by which they reach the host: packets that come in by it
	AttachExit     AttachPoint = "exit"     // packets that leave a device through which the host reaches them
	AttachCgroup   AttachPoint = "cgroup"   // a control group: the programs for sockets
)

const eventAtSocket = 0xff // EVENT_AT_SOCKET of bpf/mustang/events.h

// place is an attach point with its number in programs, and its programs.
type place struct {
	point    AttachPoint
	number   tcAttachPoint
	programs []string
}

// places returns all attach points: pods' first, the sockets' last. Socket programs that translate replies come
// first: they are attached first, and detached last.
func places() []place {
	pod, outer := []string{tcProgFromPod, tcProgToPod}, []string{tcProgOuterGuard}
	return []place{
		{AttachHost, tcAttachPointATTACH_HOST, pod},
		{AttachTun, tcAttachPointATTACH_TUN, pod},
		{AttachNetkit, tcAttachPointATTACH_NETKIT, pod},
		{AttachPod, tcAttachPointATTACH_POD, pod},
		{AttachUplink, tcAttachPointATTACH_UPLINK, []string{tcProgFromUplink, tcProgToUplink}},
		{AttachParent, tcAttachPointATTACH_PARENT, outer},
		{AttachEntrance, tcAttachPointATTACH_ENTRANCE, outer},
		{AttachExit, tcAttachPointATTACH_EXIT, []string{tcProgOuterSeal}},
		{AttachCgroup, eventAtSocket, []string{
			socklbProgGetpeername4, socklbProgGetpeername6, socklbProgRecvmsg4, socklbProgRecvmsg6,
			socklbProgSendmsg4, socklbProgSendmsg6, socklbProgConnect4, socklbProgConnect6,
		}},
	}
}

// guarding ends the names of places with only the source guard, for pods that are not endpoints.
const guarding = "guard"

// Guard returns the same place for the source guard alone.
func (p AttachPoint) Guard() AttachPoint { return p + guarding }
func (p AttachPoint) base() AttachPoint  { return AttachPoint(strings.TrimSuffix(string(p), guarding)) }

// OnPod reports whether the device is the pod's own.
func (p AttachPoint) OnPod() bool { return p.base() == AttachPod }

func (p AttachPoint) find() (found place) {
	for _, each := range places() {
		if each.point == p.base() {
			found = each
		}
	}
	return found
}

// At returns the place of the program that reported an event.
func (e *tcEvent) At() AttachPoint {
	for _, each := range places() {
		if uint8(each.number) == e.Place {
			return each.point
		}
	}
	return ""
}

// Hook is one program at its attach point.
type Hook struct {
	Point   AttachPoint
	Program string // its name in the object
}

// Hooks returns the hooks of p, in the order of places.
func (p AttachPoint) Hooks() []Hook {
	programs := p.find().programs
	if p != p.base() {
		programs = []string{tcProgGuard}
	}
	hooks := make([]Hook, len(programs))
	for i, program := range programs {
		hooks[i] = Hook{p, program}
	}
	return hooks
}

const podPlaces = 4 // the number of places that pods have

// EndpointHooks returns the hooks of all points that endpoints have.
func EndpointHooks() (all []Hook) {
	for _, p := range places()[:podPlaces] {
		all = append(all, p.point.Hooks()...)
	}
	return all
}

// GuardHooks returns the hooks of all points that have the source guard alone.
func (*Objects) GuardHooks() (all []Hook) {
	for _, p := range places()[:podPlaces] {
		all = append(all, p.point.Guard().Hooks()...)
	}
	return all
}

// DeviceHooks returns the hooks of all attach points on devices.
func (o *Objects) DeviceHooks() []Hook {
	all := o.GuardHooks()
	for _, p := range places() {
		if p.point != AttachCgroup {
			all = append(all, p.point.Hooks()...)
		}
	}
	return all
}

// AttachType returns the kernel's name of the place. Packets from a pod enter the host's device, and leave the pod's
// own; netkit runs the peer's program on them. An uplink is like the host's device of a link to all that is outside.
func (h Hook) AttachType() ebpf.AttachType {
	if h.Point == AttachCgroup {
		return map[string]ebpf.AttachType{
			socklbProgGetpeername4: ebpf.AttachCgroupInet4GetPeername,
			socklbProgGetpeername6: ebpf.AttachCgroupInet6GetPeername,
			socklbProgRecvmsg4:     ebpf.AttachCGroupUDP4Recvmsg,
			socklbProgRecvmsg6:     ebpf.AttachCGroupUDP6Recvmsg,
			socklbProgSendmsg4:     ebpf.AttachCGroupUDP4Sendmsg,
			socklbProgSendmsg6:     ebpf.AttachCGroupUDP6Sendmsg,
			socklbProgConnect4:     ebpf.AttachCGroupInet4Connect,
			socklbProgConnect6:     ebpf.AttachCGroupInet6Connect,
		}[h.Program]
	}
	from := h.Program == tcProgFromPod || h.Program == tcProgGuard || h.Program == tcProgFromUplink ||
		h.Point == AttachEntrance
	switch {
	case h.Point.base() == AttachNetkit && from:
		return ebpf.AttachNetkitPeer
	case h.Point.base() == AttachNetkit:
		return ebpf.AttachNetkitPrimary
	case from != h.Point.OnPod():
		return ebpf.AttachTCXIngress
	default:
		return ebpf.AttachTCXEgress
	}
}

// String returns the point and the program.
func (h Hook) String() string { return string(h.Point) + "-" + h.Program }

// PinName returns the name of the pin of this build's program. It begins with the digest of the object.
func (h Hook) PinName() string {
	if h.Point == AttachCgroup {
		return socklbDigest + "-" + h.Program
	}
	return tcDigest + "-" + h.String()
}

// Link is one pinned attachment of a program. Its zero values apart, each field is part of its name.
type Link struct {
	Hook Hook
	// ID is the ID of an endpoint or control group, or the cookie of an uplink's network namespace. For an entrance or
	// exit it is the index of the parent of pods' devices.
	ID      uint64
	IfIndex int // the index of an uplink, a parent, an entrance or an exit
}

// At returns such a link for each of the hooks.
func (k Link) At(hooks []Hook) []Link {
	links := make([]Link, len(hooks))
	for i, h := range hooks {
		links[i] = Link{h, k.ID, k.IfIndex}
	}
	return links
}

// String returns the name of the pin: "3-host-from_pod", "uplink-1-2-to_uplink" or "cgroup-42-connect4".
func (k Link) String() string {
	switch k.Hook.Point {
	case AttachUplink, AttachParent, AttachEntrance, AttachExit:
		return fmt.Sprintf("%s-%d-%d-%s", k.Hook.Point, k.ID, k.IfIndex, k.Hook.Program)
	case AttachCgroup:
		return fmt.Sprintf("cgroup-%d-%s", k.ID, k.Hook.Program)
	default:
		return fmt.Sprintf("%d-%s", k.ID, k.Hook)
	}
}

// Parse parses the name of a pin. ok is false unless String returns this name.
func (Link) Parse(name string) (k Link, ok bool) {
	parts := strings.Split(name, "-")
	for i, part := range parts { // a part is the point, the program, or else a number
		switch n, err := strconv.ParseUint(part, 10, 64); {
		case i == len(parts)-1:
			k.Hook.Program = part
		case err != nil:
			k.Hook.Point = AttachPoint(part)
		case k.ID == 0:
			k.ID = n
		default:
			k.IfIndex = int(n)
		}
	}
	return k, slices.Contains(k.Hook.Point.Hooks(), k.Hook) && k.String() == name
}
