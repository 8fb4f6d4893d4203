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
	AttachUplink AttachPoint = "uplink" // a device of the host that is no pod's
	// Where packets come that pods can send past the guard on their own devices.
	AttachParent   AttachPoint = "parent"   // the host's device that pods' own devices are on: what leaves by it
	AttachEntrance AttachPoint = "entrance" // a device by which they reach the host: what comes by it
	AttachExit     AttachPoint = "exit"     // a device by which the host reaches them: what leaves by it
	AttachCgroup   AttachPoint = "cgroup"   // a control group: the programs for sockets
)

// guarding is the ending of the names of places where only the source guard is attached, for pods that are no
// endpoints.
const guarding = "guard"

// Guard returns the same place for the source guard alone.
func (p AttachPoint) Guard() AttachPoint { return p + guarding }

// place returns the attach point whose devices a place for the source guard has.
func (p AttachPoint) place() AttachPoint { return AttachPoint(strings.TrimSuffix(string(p), guarding)) }

// OnPod reports whether the device is the pod's own.
func (p AttachPoint) OnPod() bool { return p.place() == AttachPod }

// config returns the configuration of the instance.
func (p AttachPoint) config() tcConfig {
	return tcConfig{AttachPoint: uint8(attachPoints()[p.place()])}
}

// attachPoints returns what programs know each place by.
func attachPoints() map[AttachPoint]tcAttachPoint {
	return map[AttachPoint]tcAttachPoint{
		AttachHost:   tcAttachPointATTACH_HOST,
		AttachTun:    tcAttachPointATTACH_TUN,
		AttachNetkit: tcAttachPointATTACH_NETKIT,
		AttachPod:    tcAttachPointATTACH_POD,
		AttachUplink: tcAttachPointATTACH_UPLINK,

		AttachParent:   tcAttachPointATTACH_PARENT,
		AttachEntrance: tcAttachPointATTACH_ENTRANCE,
		AttachExit:     tcAttachPointATTACH_EXIT,
	}
}

// At returns the place that a program tells of an event at.
func (e *tcEvent) At() AttachPoint {
	if e.Place == eventAtSocket {
		return AttachCgroup
	}
	for p, n := range attachPoints() {
		if uint8(n) == e.Place {
			return p
		}
	}
	return ""
}

// Hook is one program at its attach point.
type Hook struct {
	Point   AttachPoint
	Program string // its name in the object
}

// EndpointHooks returns the hooks of all points that endpoints have.
func EndpointHooks() []Hook {
	var all []Hook
	for _, p := range []AttachPoint{AttachHost, AttachTun, AttachNetkit, AttachPod} {
		all = append(all, p.Hooks()...)
	}
	return all
}

// GuardHooks returns the hooks of all points that have the source guard alone.
func GuardHooks() []Hook {
	var all []Hook
	for _, p := range []AttachPoint{AttachHost, AttachTun, AttachNetkit, AttachPod} {
		all = append(all, p.Guard().Hooks()...)
	}
	return all
}

// DeviceHooks returns the hooks of all attach points on devices.
func (*Objects) DeviceHooks() []Hook { return deviceHooks() }

func deviceHooks() []Hook {
	all := slices.Concat(EndpointHooks(), GuardHooks())
	for _, p := range []AttachPoint{AttachUplink, AttachParent, AttachEntrance, AttachExit} {
		all = append(all, p.Hooks()...)
	}
	return all
}

// Hooks returns the hooks of p. Those that translate replies come first for sockets: they are attached first, and
// detached last.
func (p AttachPoint) Hooks() []Hook {
	programs := []string{tcProgFromPod, tcProgToPod}
	switch p {
	case AttachHost.Guard(), AttachTun.Guard(), AttachNetkit.Guard(), AttachPod.Guard():
		programs = []string{tcProgGuard}
	case AttachParent, AttachEntrance:
		programs = []string{tcProgOuterGuard}
	case AttachExit:
		programs = []string{tcProgOuterSeal}
	case AttachUplink:
		programs = []string{tcProgFromUplink, tcProgToUplink}
	case AttachCgroup:
		programs = []string{
			socklbProgGetpeername4, socklbProgGetpeername6, socklbProgRecvmsg4, socklbProgRecvmsg6,
			socklbProgSendmsg4, socklbProgSendmsg6, socklbProgConnect4, socklbProgConnect6,
		}
	}
	hooks := make([]Hook, len(programs))
	for i, program := range programs {
		hooks[i] = Hook{p, program}
	}
	return hooks
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
	case h.Point.place() == AttachNetkit && from:
		return ebpf.AttachNetkitPeer
	case h.Point.place() == AttachNetkit:
		return ebpf.AttachNetkitPrimary
	case from != h.Point.OnPod():
		return ebpf.AttachTCXIngress
	default:
		return ebpf.AttachTCXEgress
	}
}

// String returns the point and the program.
func (h Hook) String() string { return string(h.Point) + "-" + h.Program }

// Link is one pinned attachment of a program. Its zero values apart, each field is part of its name.
type Link struct {
	Hook Hook
	// ID is the endpoint's, the control group's, the cookie of the network namespace that an uplink is in, or the index of
	// the parent of pods' devices that an entrance or an exit is of.
	ID uint64
	// IfIndex is the index of an uplink, a parent, an entrance or an exit.
	IfIndex int
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
	hook := Hook{Program: parts[len(parts)-1]}
	numbers := parts[:len(parts)-1]
	switch {
	case len(parts) == 4, len(parts) == 3 && parts[0] == string(AttachCgroup):
		hook.Point, numbers = AttachPoint(parts[0]), numbers[1:]
	case len(parts) == 3:
		hook.Point, numbers = AttachPoint(parts[1]), parts[:1]
	default:
		return Link{}, false
	}
	id, err := strconv.ParseUint(numbers[0], 10, 64)
	k = Link{Hook: hook, ID: id}
	if err == nil && len(numbers) == 2 {
		k.IfIndex, err = strconv.Atoi(numbers[1])
	}
	// Only the name that String would give is ours.
	if err != nil || !slices.Contains(hook.Point.Hooks(), hook) || k.String() != name {
		return Link{}, false
	}
	return k, true
}

// InPeer reports whether the kernel knows the link by the index that the device's peer has in its network namespace.
func (h Hook) InPeer() bool { return h.AttachType() == ebpf.AttachNetkitPeer }
