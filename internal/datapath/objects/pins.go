// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
)

// Pins is all that is pinned under a root in this build's layout.
type Pins struct {
	// Layouts are the versions of maps under the root: "v6". Unloaded are directories that a killed process left.
	Layouts  []string        `json:"layouts"`
	Unloaded []string        `json:"-"`
	Programs []pinnedProgram `json:"programs"`
	Links    []PinnedLink    `json:"links"`
	Maps     []pinnedMap     `json:"maps"`
}

// pinnedProgram is one pinned program. Each attach point has its own.
type pinnedProgram struct {
	Pin      string `json:"program"` // the name of its pin; Name is the program's own
	Name     string `json:"name"`
	ID       uint32 `json:"id"`
	Current  bool   `json:"current_build"` // whether it is of this program's build
	Attached int    `json:"attached"`      // the number of links that run it
}

// PinnedLink is one pinned attachment of a program.
type PinnedLink struct {
	Link      `json:"-"`
	Name      string `json:"name"`       // the name of its pin
	On        uint64 `json:"on"`         // the index of the device, or the control group's ID; 0 if that is gone
	ProgramID uint32 `json:"program_id"` // the program that it runs
}

type pinnedMap struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // the kernel's name of the type: "Hash"
	// Rows is the number of rows, and Size the maximum; -1 for kinds that always have all rows, or report neither.
	Rows  int64  `json:"rows"`
	Size  int64  `json:"size"`
	Bytes uint64 `json:"bytes"` // the kernel's memory for it
}

// Read reads the pins under root. It takes no lock, and opens no map for writing. If root is missing, the error
// matches os.ErrNotExist.
func (p *Pins) Read(root string) (err error) {
	if p.Layouts, p.Unloaded, err = layouts(root); err != nil {
		return err
	}
	l := newLayout(root)
	for _, each := range []struct {
		dir  string
		read func(path string) error
	}{{l.maps, p.readMap}, {l.links, p.readLink}, {l.programs, p.readProgram}, {l.socketPrograms, p.readProgram}} {
		entries, err := os.ReadDir(each.dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("read pins: %w", err)
		}
		for _, entry := range entries {
			err := each.read(filepath.Join(each.dir, entry.Name()))
			if errors.Is(err, os.ErrNotExist) && each.dir != l.maps {
				continue // it was replaced or detached meanwhile
			}
			if err != nil {
				return fmt.Errorf("read pin %q: %w", entry.Name(), err)
			}
		}
	}
	return nil
}

// readProgram reads a program; the links that run it have been read.
func (p *Pins) readProgram(path string) error {
	program, err := ebpf.LoadPinnedProgram(path, nil)
	if err != nil {
		return err
	}
	defer func() { _ = program.Close() }()
	info, err := program.Info()
	if err != nil {
		return err
	}
	id, _ := info.ID()
	digest, pin, _ := strings.Cut(filepath.Base(path), "-")
	out := pinnedProgram{Pin: pin, Name: info.Name, ID: uint32(id), Current: digest == tcDigest}
	if !strings.Contains(pin, "-") { // for sockets
		out.Current = digest == socklbDigest
	}
	for _, l := range p.Links {
		if l.ProgramID == out.ID {
			out.Attached++
		}
	}
	p.Programs = append(p.Programs, out)
	return nil
}

func (p *Pins) readLink(path string) error {
	name := filepath.Base(path)
	k, ok := (Link{}).Parse(name)
	if !ok {
		return nil
	}
	on, program, err := readLink(path)
	if err == nil {
		p.Links = append(p.Links, PinnedLink{Link: k, Name: name, On: on, ProgramID: uint32(program)})
	}
	return err
}

func (p *Pins) readMap(path string) error {
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }()
	info, err := m.Info()
	if err != nil {
		return err
	}
	out := pinnedMap{Name: filepath.Base(path), Kind: m.Type().String(), Rows: -1, Size: -1}
	out.Bytes, _ = info.Memlock()
	if slices.Contains([]ebpf.MapType{ebpf.Hash, ebpf.LRUHash, ebpf.LPMTrie}, m.Type()) {
		out.Size = int64(m.MaxEntries())
		if out.Rows, err = countRows(m); err != nil {
			return err
		}
	}
	p.Maps = append(p.Maps, out)
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

// FilesDir returns the directory of the files that belong to the maps. It may not exist.
func (o *Objects) FilesDir() (string, error) { return filesOf(o.layout) }

// MakeFilesDir makes the directory of FilesDir, readable only by root, and removes directories of maps that are gone.
func (o *Objects) MakeFilesDir() (string, error) {
	dir, err := o.FilesDir()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("create directory of files: %w", err)
	}
	entries, err := os.ReadDir(filesRoot)
	for _, entry := range entries {
		id, errID := strconv.ParseUint(entry.Name(), 10, 32)
		if errID != nil {
			continue
		}
		if m, errMap := ebpf.NewMapFromID(ebpf.MapID(id)); errors.Is(errMap, os.ErrNotExist) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(filesRoot, entry.Name())))
		} else if errMap == nil {
			_ = m.Close()
		}
	}
	return dir, err
}
