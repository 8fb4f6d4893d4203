// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// side is where on a pod's link the programs sit. Each has its own instance of them.
type side string

const (
	hostSide   side = "host"   // on the host's device, which has an Ethernet header
	tunSide    side = "tun"    // on the host's device, which has none
	netkitSide side = "netkit" // on the host's device, by netkit
	podSide    side = "pod"    // on the pod's own device
	uplinkSide side = "uplink" // on a device of the host's own; it belongs to no endpoint
)

func sides() []side { return []side{hostSide, tunSide, netkitSide, podSide} }

// config is what the instance for the side is told.
func (s side) config() mustangConfig {
	switch s {
	case tunSide:
		return mustangConfig{Side: uint8(mustangSideSIDE_HOST), L3: 1}
	case netkitSide:
		return mustangConfig{Side: uint8(mustangSideSIDE_NETKIT)}
	case podSide:
		return mustangConfig{Side: uint8(mustangSideSIDE_POD)}
	case uplinkSide:
		return mustangConfig{Side: uint8(mustangSideSIDE_UPLINK)}
	default:
		return mustangConfig{Side: uint8(mustangSideSIDE_HOST)}
	}
}

// hook is one program at its place on a device.
type hook struct {
	side    side
	program string // its name in the object
}

// hooks are all the places that endpoints have.
func hooks() []hook {
	var all []hook
	for _, s := range sides() {
		all = append(all, s.hooks()...)
	}
	return all
}

// on returns the hooks of one side.
func (s side) hooks() []hook {
	if s == uplinkSide {
		return []hook{{s, mustangProgFromUplink}, {s, mustangProgToUplink}}
	}
	return []hook{{s, mustangProgFromPod}, {s, mustangProgToPod}}
}

// attachType is the place for the packets that the program is for: what leaves a pod comes in on the host's side. With
// netkit it is what the peer sends, the host's side being the primary. An uplink is like the host's side of a link to all
// that is outside.
func (h hook) attachType() ebpf.AttachType {
	leaves := h.program == mustangProgFromPod || h.program == mustangProgFromUplink
	switch {
	case h.side == netkitSide && leaves:
		return ebpf.AttachNetkitPeer
	case h.side == netkitSide:
		return ebpf.AttachNetkitPrimary
	case leaves == (h.side != podSide):
		return ebpf.AttachTCXIngress
	default:
		return ebpf.AttachTCXEgress
	}
}

// attach puts the program on a device of the thread's namespace.
func (h hook) attach(p *ebpf.Program, ifindex int) (link.Link, error) {
	if h.side == netkitSide {
		return link.AttachNetkit(link.NetkitOptions{Interface: ifindex, Program: p, Attach: h.attachType()})
	}
	return link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: p, Attach: h.attachType()})
}

func (h hook) String() string { return string(h.side) + "-" + h.program }

func (l layout) programPin(digest string, h hook) string {
	return filepath.Join(l.programs(), digest+"-"+h.String())
}

// ensurePrograms puts this build's programs in the place of another build's wherever those are attached. The caller has
// the lock.
func (d *Datapath) ensurePrograms() error {
	pinned, err := pinnedBuilds(d.layout.programs(), mustangDigest)
	if err != nil {
		return err
	}
	return pinned.replace(d.updateLinks)
}

// loadPrograms loads the instance for one side over the pinned maps, and pins it.
func (d *Datapath) loadPrograms(s side) error {
	if err := d.openTables(nil); err != nil {
		return err
	}
	collection, err := newCollection(&d.maps, s)
	if err != nil {
		return err
	}
	defer collection.Close()
	for _, h := range s.hooks() {
		if err := pinProgram(collection.Programs[h.program], d.layout.programPin(mustangDigest, h)); err != nil {
			return err
		}
	}
	return nil
}

func newCollection(pins *mustangMaps, s side) (*ebpf.Collection, error) {
	spec, err := loadMustang()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	if err := spec.Variables["config"].Set(s.config()); err != nil {
		return nil, fmt.Errorf("configure programs: %w", err)
	}
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool {
		return !slices.ContainsFunc(s.hooks(), func(h hook) bool { return h.program == name })
	})
	pinned := replacements(slots(pins))
	for name, m := range pinned {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: pinned})
	if err != nil {
		return nil, fmt.Errorf("load programs: %w", err)
	}
	return collection, nil
}

// program returns this build's pinned program. A side's programs are loaded when the first of its pods comes: most hosts
// have one kind of link. The caller has the lock.
func (d *Datapath) program(h hook) (*ebpf.Program, error) {
	path := d.layout.programPin(mustangDigest, h)
	p, err := ebpf.LoadPinnedProgram(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		if err := d.loadPrograms(h.side); err != nil {
			return nil, err
		}
		p, err = ebpf.LoadPinnedProgram(path, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("open program %q: %w", h, err)
	}
	return p, nil
}

// probe returns an *UnsupportedError if the kernel has no tcx. It attaches a program to a device that cannot exist: a
// kernel that knows tcx looks for the device.
func probe() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
		License:      "Dual BSD/GPL",
	})
	if err != nil {
		return fmt.Errorf("load a program: %w", err)
	}
	defer func() { _ = p.Close() }()
	l, err := link.AttachTCX(link.TCXOptions{Interface: 0, Program: p, Attach: ebpf.AttachTCXIngress})
	if err == nil {
		return l.Close()
	}
	if errors.Is(err, ebpf.ErrNotSupported) {
		return &UnsupportedError{Feature: "tcx", Kernel: "6.6", Err: err}
	}
	return nil
}
