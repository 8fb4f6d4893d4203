// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"mustang/internal/nl"
)

// AttachedProgram is an eBPF program at its place on a device.
type AttachedProgram struct {
	// Hook is the place: "tcx ingress", "tcx egress", "netkit primary", "netkit peer", "tc ingress", "tc egress" or
	// "xdp".
	Hook string
	// ID is the kernel's number of the program, Name and Tag are what the kernel knows it by. They are empty if it is gone
	// by now.
	ID        uint32
	Name, Tag string
	// LinkID is the number of the link that holds the program; 0 if it was attached without one.
	LinkID uint32
	// Mustang is whether it is a program of a datapath of ours, whatever its root.
	Mustang bool
}

// deviceHooks are the places on a device that the kernel is asked for.
func deviceHooks() []deviceHook {
	return []deviceHook{
		{"tcx ingress", ebpf.AttachTCXIngress, ""},
		{"tcx egress", ebpf.AttachTCXEgress, ""},
		{"netkit primary", ebpf.AttachNetkitPrimary, "netkit"},
		{"netkit peer", ebpf.AttachNetkitPeer, "netkit"},
	}
}

type deviceHook struct {
	name   string
	attach ebpf.AttachType
	kind   string // of the devices that have the hook; empty for all
}

// Attached returns the programs on devices of a namespace by the devices' indexes, in the order in which they run. Of a
// netkit pair, both programs are told of at the primary device: the other one does not show its program.
func Attached(ns *nl.Namespace, links []nl.Link) (map[int][]AttachedProgram, error) {
	out := make(map[int][]AttachedProgram)
	err := ns.Do(func() error {
		for _, l := range links {
			for _, h := range deviceHooks() {
				if h.kind == "" || h.kind == l.Kind {
					out[l.Index] = append(out[l.Index], h.on(l.Index)...)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for programs in network namespace %q: %w", ns.Name(), err)
	}
	for _, l := range links {
		for _, ref := range l.Programs {
			p := AttachedProgram{Hook: ref.Hook, ID: ref.ID}
			p.look()
			out[l.Index] = append(out[l.Index], p)
		}
	}
	return out, nil
}

// on returns the programs at one hook of a device of the thread's namespace. The kernel answers with an error of some kind
// if there are none, if it doesn't know the hook, and if the device has no such hook or is gone.
func (h deviceHook) on(ifindex int) []AttachedProgram {
	result, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: h.attach})
	if err != nil {
		return nil
	}
	var out []AttachedProgram
	for _, attached := range result.Programs {
		p := AttachedProgram{Hook: h.name, ID: uint32(attached.ID)}
		if id, ok := attached.LinkID(); ok {
			p.LinkID = uint32(id)
		}
		p.look()
		out = append(out, p)
	}
	return out
}

// look finds out what the program is.
func (p *AttachedProgram) look() {
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.ID))
	if err != nil {
		return
	}
	defer func() { _ = program.Close() }()
	info, err := program.Info()
	if err != nil {
		return
	}
	p.Name, p.Tag = info.Name, info.Tag
	p.Mustang = isOurs(info)
}

// isOurs says whether a program has the name of one of ours and uses tables of connections and of metrics: the kernel
// does not keep who made it.
func isOurs(info *ebpf.ProgramInfo) bool {
	if !slices.Contains([]string{mustangProgFromPod, mustangProgToPod, mustangProgFromUplink, mustangProgToUplink}, info.Name) {
		return false
	}
	ids, _ := info.MapIDs()
	var names []string
	for _, id := range ids {
		if name, err := mapName(id); err == nil {
			names = append(names, name)
		}
	}
	return slices.Contains(names, mustangMapConnections) && slices.Contains(names, mustangMapMetrics)
}

func mapName(id ebpf.MapID) (string, error) {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return "", err
	}
	defer func() { _ = m.Close() }()
	info, err := m.Info()
	if err != nil {
		return "", err
	}
	return info.Name, nil
}
