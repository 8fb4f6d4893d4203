// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// AttachedProgram is an eBPF program that is attached to a device.
type AttachedProgram struct {
	// Hook is the place: "tcx ingress", "tcx egress", "netkit primary", "netkit peer", "tc ingress", "tc egress" or "xdp".
	Hook string
	// ID is the kernel's number of the program. Name and Tag are empty if the program is gone by now.
	ID        uint32
	Name, Tag string
	// LinkID is the number of the link that holds the program; 0 if it was attached without one.
	LinkID uint32
	// Mustang is true for a program of this datapath, under any root.
	Mustang bool
}

// ProgramsOn returns the tcx and netkit programs of a device of the calling thread's network namespace, in the order in
// which they run. The programs of a netkit pair are both at the primary device: the other does not show its program.
func ProgramsOn(ifindex int, kind string) []AttachedProgram {
	var out []AttachedProgram
	for _, h := range []struct {
		name   string
		attach ebpf.AttachType
		kind   string // of the devices that have the hook; empty for all
	}{
		{"tcx ingress", ebpf.AttachTCXIngress, ""},
		{"tcx egress", ebpf.AttachTCXEgress, ""},
		{"netkit primary", ebpf.AttachNetkitPrimary, "netkit"},
		{"netkit peer", ebpf.AttachNetkitPeer, "netkit"},
	} {
		if h.kind != "" && h.kind != kind {
			continue
		}
		// Various errors: no programs, the kernel or the device lacks the hook, the device is gone.
		result, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: h.attach})
		if err != nil {
			continue
		}
		for _, attached := range result.Programs {
			p := AttachedProgram{Hook: h.name, ID: uint32(attached.ID)}.Described()
			if id, ok := attached.LinkID(); ok {
				p.LinkID = uint32(id)
			}
			out = append(out, p)
		}
	}
	return out
}

// Described returns the program at its hook with the kernel's description, found by its ID.
func (p AttachedProgram) Described() AttachedProgram {
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.ID))
	if err != nil {
		return p
	}
	defer func() { _ = program.Close() }()
	info, err := program.Info()
	if err != nil {
		return p
	}
	p.Name, p.Tag = info.Name, info.Tag
	p.Mustang = isOurs(info)
	return p
}

// isOurs reports whether a program has one of our names and uses our maps: the kernel does not store its creator.
func isOurs(info *ebpf.ProgramInfo) bool {
	if !slices.ContainsFunc(deviceHooks(), func(h Hook) bool { return h.Program == info.Name }) {
		return false
	}
	ids, _ := info.MapIDs()
	names := map[string]bool{}
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue
		}
		if info, err := m.Info(); err == nil {
			names[info.Name] = true
		}
		_ = m.Close()
	}
	return names["metrics"] && (names["connections"] || names["source_guard"])
}
