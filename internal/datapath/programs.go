// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// side is where the programs sit: on the host's side of a pod's link, or on the pod's own device.
type side string

const (
	hostSide side = "host"
	podSide  side = "pod"
)

// hook is one program at its place on a device.
type hook struct {
	side    side
	program string // its name in the object
}

// hooks are all the places that there are.
func hooks() []hook {
	return []hook{
		{hostSide, mustangProgFromPod},
		{hostSide, mustangProgToPod},
		{podSide, mustangProgFromPod},
		{podSide, mustangProgToPod},
	}
}

// on returns the hooks of one side.
func (s side) hooks() []hook {
	return []hook{{s, mustangProgFromPod}, {s, mustangProgToPod}}
}

// direction of the packets that the program is for: what leaves a pod comes in on the host's side.
func (h hook) direction() ebpf.AttachType {
	if (h.program == mustangProgFromPod) == (h.side == hostSide) {
		return ebpf.AttachTCXIngress
	}
	return ebpf.AttachTCXEgress
}

func (h hook) String() string { return string(h.side) + "-" + h.program }

// digest names this build's programs.
func digest() string {
	sum := sha256.Sum256(_MustangBytes)
	return hex.EncodeToString(sum[:8])
}

func (l layout) programPin(digest string, h hook) string {
	return filepath.Join(l.programs(), digest+"-"+h.String())
}

// ensurePrograms pins this build's programs, and puts them in the place of another build's wherever those are attached.
// The other build's pins go last, so that a process that dies in between is made up for by the next. The caller has the
// lock.
func (d *Datapath) ensurePrograms() error {
	entries, err := os.ReadDir(d.layout.programs())
	if err != nil {
		return fmt.Errorf("read pinned programs: %w", err)
	}
	ours := 0
	var others []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), digest()+"-") {
			ours++
		} else {
			others = append(others, entry.Name())
		}
	}
	if ours < len(hooks()) {
		for _, s := range []side{hostSide, podSide} {
			if err := d.loadPrograms(s); err != nil {
				return err
			}
		}
	}
	if len(others) == 0 {
		return nil
	}
	if err := d.updateLinks(); err != nil {
		return err
	}
	for _, name := range others {
		if err := os.Remove(filepath.Join(d.layout.programs(), name)); err != nil {
			return fmt.Errorf("unpin program: %w", err)
		}
	}
	return nil
}

// loadPrograms loads the instance for one side over the pinned maps, and pins it.
func (d *Datapath) loadPrograms(s side) error {
	collection, err := newCollection(d.maps, s)
	if err != nil {
		return err
	}
	defer collection.Close()
	for _, h := range s.hooks() {
		path := d.layout.programPin(digest(), h)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("unpin program: %w", err)
		}
		if err := collection.Programs[h.program].Pin(path); err != nil {
			return fmt.Errorf("pin program %q: %w", h, err)
		}
	}
	return nil
}

func newCollection(maps *mustangMaps, s side) (*ebpf.Collection, error) {
	spec, err := loadMustang()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	var config mustangConfig
	if s == hostSide {
		config.HostSide = 1
	}
	if err := spec.Variables["config"].Set(config); err != nil {
		return nil, fmt.Errorf("configure programs: %w", err)
	}
	pinned := replacements(maps)
	for name, m := range pinned {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: pinned})
	if err != nil {
		return nil, fmt.Errorf("load programs: %w", err)
	}
	return collection, nil
}

// program returns this build's pinned program.
func (d *Datapath) program(h hook) (*ebpf.Program, error) {
	p, err := ebpf.LoadPinnedProgram(d.layout.programPin(digest(), h), nil)
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
