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

// readPins reads the pins of this program's layout: links before the programs that they run.
func (r *Report) readPins(dir string) error {
	for _, each := range []struct {
		dir  string
		read func(path string) error
	}{{"maps", r.readMap}, {"links", r.readLink}, {"progs", r.readProgram}, {"socks", r.readProgram}} {
		entries, err := os.ReadDir(filepath.Join(dir, each.dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("read pins: %w", err)
		}
		for _, entry := range entries {
			err := each.read(filepath.Join(dir, each.dir, entry.Name()))
			if errors.Is(err, os.ErrNotExist) && each.dir != "maps" {
				continue // it was replaced or detached meanwhile
			}
			if err != nil {
				return fmt.Errorf("read %s of %s: %w", entry.Name(), each.dir, err)
			}
		}
	}
	return nil
}

func (r *Report) readProgram(path string) error {
	p, err := ebpf.LoadPinnedProgram(path, nil)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	info, err := p.Info()
	if err != nil {
		return err
	}
	id, _ := info.ID()
	digest, pin, _ := strings.Cut(filepath.Base(path), "-")
	current := objects.Hook{Point: objects.AttachCgroup}
	if point, _, found := strings.Cut(pin, "-"); found {
		current = objects.Hook{Point: objects.AttachPoint(point)}
	}
	attached := r.linksOf(func(l Link) bool { return l.ProgramID == uint32(id) })
	out := Program{Pin: pin, Name: info.Name, ID: uint32(id), Attached: len(attached),
		Current: strings.HasPrefix(current.PinName(), digest+"-")}
	if !out.Current {
		r.find("the next command that adds something replaces it", "program %s (%d links) is of another build", pin,
			out.Attached)
	}
	r.Programs = append(r.Programs, out)
	return nil
}

func (r *Report) readLink(path string) error {
	name := filepath.Base(path)
	k, ok := (objects.Link{}).Parse(name)
	if !ok {
		return nil
	}
	on, program, err := objects.ReadLink(path)
	if err == nil {
		r.Links = append(r.Links, Link{Link: k, Name: name, On: on, ProgramID: uint32(program)})
	}
	return err
}

func (r *Report) readMap(path string) error {
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }()
	info, err := m.Info()
	if err != nil {
		return err
	}
	out := Map{Name: filepath.Base(path), Kind: m.Type().String(), Rows: -1, Size: -1}
	out.Bytes, _ = info.Memlock()
	if slices.Contains([]ebpf.MapType{ebpf.Hash, ebpf.LRUHash, ebpf.LPMTrie}, m.Type()) {
		out.Size = int64(m.MaxEntries())
		if out.Rows, err = countRows(m); err != nil {
			return err
		}
	}
	r.Maps = append(r.Maps, out)
	// An LRU map makes room for itself, and of connections the slots tell how many there may be.
	if out.Size > 0 && m.Type() != ebpf.LRUHash && out.Name != "connections" &&
		float64(out.Rows) >= full*float64(out.Size) {
		r.find("remove rows, or mustang datapath unload and larger maps", "map %s has %d of %d rows", out.Name,
			out.Rows, out.Size)
	}
	return nil
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
