// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"mustang/internal/datapath/objects"
)

// Program is one pinned program. Each attach point has its own.
type Program struct {
	// Pin is the name of its pin, and Name the program's.
	Pin  string `json:"program"`
	Name string `json:"name"`
	ID   uint32 `json:"id"`
	// Current is whether it is of this program's build.
	Current bool `json:"current_build"`
	// Attached is the number of links that run it.
	Attached int `json:"attached"`
}

// Link is one pinned attachment of a program.
type Link struct {
	objects.Link `json:"-"`
	// Name is that of its pin.
	Name string `json:"name"`
	// On is the index of the device, or the control group's ID; 0 if that is gone.
	On uint64 `json:"on"`
	// ProgramID is the program that it runs.
	ProgramID uint32 `json:"program_id"`
}

// Map is one pinned map.
type Map struct {
	Name string `json:"name"`
	// Kind is the kernel's name of the type: "Hash".
	Kind string `json:"kind"`
	// Rows is how many there are, and Size how many there may be; both are -1 for kinds that always have all rows, or tell
	// neither.
	Rows int64 `json:"rows"`
	Size int64 `json:"size"`
	// Bytes is the kernel's memory for it.
	Bytes uint64 `json:"bytes"`
}

// full is the part of a map's rows from which on it is amiss.
const full = 0.8

// readPins reads the pins of this program's layout.
func (r *Report) readPins(dir string) error {
	if err := r.readMaps(filepath.Join(dir, "maps")); err != nil {
		return err
	}
	if err := r.readLinks(filepath.Join(dir, "links")); err != nil {
		return err
	}
	return errors.Join(r.readPrograms(filepath.Join(dir, "progs")), r.readPrograms(filepath.Join(dir, "socks")))
}

// pinsIn returns the names of pins, none if there is no such directory.
func pinsIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read pins: %w", err)
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, nil
}

func (r *Report) readPrograms(dir string) error {
	names, err := pinsIn(dir)
	if err != nil {
		return err
	}
	for _, pin := range names {
		p, err := ebpf.LoadPinnedProgram(filepath.Join(dir, pin), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue // it was replaced meanwhile
		}
		if err != nil {
			return fmt.Errorf("open program %q: %w", pin, err)
		}
		info, err := p.Info()
		_ = p.Close()
		if err != nil {
			return fmt.Errorf("read program %q: %w", pin, err)
		}
		id, _ := info.ID()
		digest, rest, _ := strings.Cut(pin, "-")
		current := objects.Hook{Point: objects.AttachCgroup}
		if point, _, found := strings.Cut(rest, "-"); found {
			current = objects.Hook{Point: objects.AttachPoint(point)}
		}
		out := Program{Pin: rest, Name: info.Name, ID: uint32(id), Current: strings.HasPrefix(current.PinName(), digest+"-")}
		for _, l := range r.Links {
			if l.ProgramID == out.ID {
				out.Attached++
			}
		}
		if !out.Current {
			r.find("the next command that adds something replaces it", "program %s (%d links) is of another build", rest,
				out.Attached)
		}
		r.Programs = append(r.Programs, out)
	}
	return nil
}

func (r *Report) readLinks(dir string) error {
	names, err := pinsIn(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		k, ok := (objects.Link{}).Parse(name)
		if !ok {
			continue
		}
		l, err := link.LoadPinnedLink(filepath.Join(dir, name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue // it was detached meanwhile
		}
		if err != nil {
			return fmt.Errorf("open link %q: %w", name, err)
		}
		info, err := l.Info()
		_ = l.Close()
		if err != nil {
			return fmt.Errorf("read link %q: %w", name, err)
		}
		out := Link{Link: k, Name: name, ProgramID: uint32(info.Program)}
		switch {
		case info.TCX() != nil:
			out.On = uint64(info.TCX().Ifindex)
		case info.Netkit() != nil:
			out.On = uint64(info.Netkit().Ifindex)
		case info.Cgroup() != nil:
			out.On = info.Cgroup().CgroupId
		}
		r.Links = append(r.Links, out)
	}
	return nil
}

func (r *Report) readMaps(dir string) error {
	names, err := pinsIn(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			return fmt.Errorf("open map %q: %w", name, err)
		}
		out, err := describeMap(name, m)
		_ = m.Close()
		if err != nil {
			return err
		}
		r.Maps = append(r.Maps, out)
		// An LRU map makes room for itself, and of connections the slots tell how many there may be.
		if (m.Type() == ebpf.Hash || m.Type() == ebpf.LPMTrie) && name != "connections" &&
			float64(out.Rows) >= full*float64(out.Size) {
			r.find("remove rows, or mustang datapath unload and larger maps", "map %s has %d of %d rows", name,
				out.Rows, out.Size)
		}
	}
	return nil
}

func describeMap(name string, m *ebpf.Map) (Map, error) {
	out := Map{Name: name, Kind: m.Type().String(), Rows: -1, Size: -1}
	info, err := m.Info()
	if err != nil {
		return out, fmt.Errorf("read map %q: %w", name, err)
	}
	out.Bytes, _ = info.Memlock()
	if slices.Contains([]ebpf.MapType{ebpf.Hash, ebpf.LRUHash, ebpf.LPMTrie}, m.Type()) {
		out.Size = int64(m.MaxEntries())
		out.Rows, err = countRows(m)
	}
	if err != nil {
		err = fmt.Errorf("read map %q: %w", name, err)
	}
	return out, err
}

// countRows counts the rows of a map whatever their form. Rows that come or go meanwhile may be missed.
func countRows(m *ebpf.Map) (n int64, err error) {
	const step = 4096 // must hold the largest bucket
	room := func(size uint32) any {
		row := reflect.ArrayOf(int(size), reflect.TypeFor[byte]())
		return reflect.MakeSlice(reflect.SliceOf(row), step, step).Interface()
	}
	keys, values := room(m.KeySize()), room(m.ValueSize())
	var cursor ebpf.MapBatchCursor
	for {
		got, err := m.BatchLookup(&cursor, keys, values, nil)
		n += int64(got)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// linksOf returns the links that match.
func (r *Report) linksOf(match func(Link) bool) []Link {
	return slices.DeleteFunc(slices.Clone(r.Links), func(l Link) bool { return !match(l) })
}
