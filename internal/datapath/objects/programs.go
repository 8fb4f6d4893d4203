// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"mustang/internal/lock"
)

// Program returns this build's pinned program. The packet programs of an attach point are loaded when the first link needs
// them: most hosts have one kind of link. Callers have the lock of the links.
func (o *Objects) Program(h Hook) (*ebpf.Program, error) {
	path := o.layout.programPin(h)
	p, err := ebpf.LoadPinnedProgram(path, nil)
	if errors.Is(err, os.ErrNotExist) && h.Point != AttachCgroup {
		if err := o.loadPrograms(h.Point); err != nil {
			return nil, err
		}
		p, err = ebpf.LoadPinnedProgram(path, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("open program %q: %w", h, err)
	}
	return p, nil
}

// PinName returns the name of the pin of this build's program. It begins with the digest of the object.
func (h Hook) PinName() string {
	if h.Point == AttachCgroup {
		return socklbDigest + "-" + h.Program
	}
	return tcDigest + "-" + h.String()
}

// replaceBuilds replaces the programs of other builds, and completes those for sockets. It takes the lock of the links only
// if there is something to do.
func (o *Objects) replaceBuilds(ctx context.Context, also func(*Objects) error) error {
	complete, err := o.programsComplete()
	if err == nil && !complete {
		var held *lock.Lock
		if held, err = o.LockLinks(ctx); err == nil {
			defer held.Unlock()
			err = errors.Join(o.ensurePrograms(also), o.ensureSocketPrograms())
		}
	}
	if err != nil && o.CheckPinned() != nil {
		return errRemoved
	}
	return err
}

// programsComplete reports whether all pinned programs are of this build, and those for sockets complete if there are any.
func (o *Objects) programsComplete() (bool, error) {
	_, others, err := pinnedBuilds(o.layout.programs(), tcDigest)
	if err != nil || len(others) > 0 {
		return false, err
	}
	ours, others, err := pinnedBuilds(o.layout.socketPrograms(), socklbDigest)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	return len(others) == 0 && ours == len(socketPrograms()), err
}

// Renew does for maps that are open what Create does besides opening them. An error means that Create is to be called: they may
// no longer be pinned.
func (o *Objects) Renew(ctx context.Context, also func(*Objects) error) error {
	if err := o.CheckPinned(); err != nil {
		return err
	}
	return o.replaceBuilds(ctx, also)
}

// ensurePrograms replaces the programs of other builds wherever they are attached. Callers have the lock of the links.
func (o *Objects) ensurePrograms(also func(*Objects) error) error {
	_, others, err := pinnedBuilds(o.layout.programs(), tcDigest)
	if err != nil || len(others) == 0 {
		return err
	}
	if err := o.updateLinks(false); err != nil {
		return err
	}
	if also != nil {
		if err := also(o); err != nil {
			return err
		}
	}
	// The ring buffer of earlier builds, which nothing uses any more.
	if err := os.Remove(o.layout.mapPin("policy_events")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unpin map: %w", err)
	}
	return removeAll(others)
}

// LoadSocketPrograms loads and pins the programs for sockets, before the first of them is attached. Callers have the
// lock of the links.
func (o *Objects) LoadSocketPrograms() error {
	if err := os.MkdirAll(o.layout.socketPrograms(), 0o700); err != nil {
		return fmt.Errorf("create pin directory: %w", err)
	}
	return o.ensureSocketPrograms()
}

// ensureSocketPrograms loads the programs for sockets if a control group has ever had them, and replaces those of other
// builds. Callers have the lock of the links.
func (o *Objects) ensureSocketPrograms() error {
	ours, others, err := pinnedBuilds(o.layout.socketPrograms(), socklbDigest)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if ours < len(socketPrograms()) {
		if err := o.loadSocketPrograms(); err != nil {
			return err
		}
	}
	if len(others) == 0 {
		return nil
	}
	if err := o.updateLinks(true); err != nil {
		return err
	}
	return removeAll(others)
}

// pinnedBuilds returns how many of the pinned programs in a directory are of the build with the digest, and the paths of
// the others. The error matches os.ErrNotExist if there is no such directory.
func pinnedBuilds(dir, digest string) (ours int, others []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, nil, fmt.Errorf("read pinned programs: %w", err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), digest+"-") {
			ours++
		} else {
			others = append(others, filepath.Join(dir, entry.Name()))
		}
	}
	return ours, others, nil
}

// ProgramPins returns the paths of all pinned programs.
func (o *Objects) ProgramPins() ([]string, error) {
	var pins []string
	for _, dir := range []string{o.layout.programs(), o.layout.socketPrograms()} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read pinned programs: %w", err)
		}
		for _, entry := range entries {
			pins = append(pins, filepath.Join(dir, entry.Name()))
		}
	}
	return pins, nil
}

// removeAll unpins the programs of other builds. Their pins go last, so that the next process completes the work of one
// that dies.
func removeAll(paths []string) error {
	for _, path := range paths {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("unpin program: %w", err)
		}
	}
	return nil
}

// pinProgram pins a program in place of one that may be left there.
func pinProgram(p *ebpf.Program, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unpin program: %w", err)
	}
	if err := p.Pin(path); err != nil {
		return fmt.Errorf("pin program %s: %w", filepath.Base(path), err)
	}
	return nil
}

// loadPrograms loads the instance for one attach point over the pinned maps, and pins it.
func (o *Objects) loadPrograms(at AttachPoint) error {
	collection, err := o.newCollection(at)
	if err != nil {
		return err
	}
	defer collection.Close()
	for _, h := range at.Hooks() {
		if err := pinProgram(collection.Programs[h.Program], o.layout.programPin(h)); err != nil {
			return err
		}
	}
	return nil
}

// newCollection loads an instance.
func (o *Objects) newCollection(at AttachPoint) (*ebpf.Collection, error) {
	spec, err := loadTc()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	if err := spec.Variables[tcVarConfig].Set(at.config()); err != nil {
		return nil, fmt.Errorf("configure programs: %w", err)
	}
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool {
		return !slices.Contains(at.Hooks(), Hook{at, name})
	})
	collection, err := loadOver(spec, o.maps)
	if errors.Is(err, ebpf.ErrNotSupported) {
		return nil, &UnsupportedError{Feature: "type information (CONFIG_DEBUG_INFO_BTF)", Kernel: "6.6", Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("load programs: %w", err)
	}
	return collection, nil
}

// socketPrograms returns the names of all programs for sockets.
func socketPrograms() []string {
	names := []string{socklbProgRetireUdp, socklbProgRetireTcp}
	for _, h := range AttachCgroup.Hooks() {
		names = append(names, h.Program)
	}
	return names
}

func (o *Objects) loadSocketPrograms() error {
	collection, err := o.socketCollection()
	if err != nil {
		return err
	}
	defer collection.Close()
	for _, name := range socketPrograms() {
		path := o.layout.programPin(Hook{AttachCgroup, name})
		if err := pinProgram(collection.Programs[name], path); err != nil {
			return err
		}
	}
	return nil
}

// loadOver loads an object that uses the pinned maps by their names.
func loadOver(spec *ebpf.CollectionSpec, pinned map[string]*ebpf.Map) (*ebpf.Collection, error) {
	used := make(map[string]*ebpf.Map)
	for name, m := range pinned {
		if of := spec.Maps[name]; of != nil {
			of.MaxEntries, used[name] = m.MaxEntries(), m
		}
	}
	return ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: used})
}

// socketCollection loads the programs for sockets over the pinned maps.
func (o *Objects) socketCollection() (*ebpf.Collection, error) {
	spec, err := loadSocklb()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	private, err := o.layout.openMaps(Sizes{Connections: o.Slots.Map.MaxEntries()}, true, true)
	if err != nil {
		return nil, err
	}
	defer func() { _ = closeMaps(private) }()
	all := maps.Clone(o.maps)
	maps.Copy(all, private)
	collection, err := loadOver(spec, all)
	if errors.Is(err, ebpf.ErrNotSupported) {
		return nil, &UnsupportedError{Feature: "way to end sockets by BPF, or no type information", Kernel: "6.5", Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("load socket programs: %w", err)
	}
	return collection, nil
}

// RetireSockets calls each with a function that ends, in the calling thread's network namespace, connected sockets of a
// protocol whose service no longer has their backend: of UDP all, of TCP those of services that reset. It does nothing if no
// control group has ever had the programs for sockets: no socket is connected to a backend then.
func (o *Objects) RetireSockets(protocol uint8, each func(run func() error) error) error {
	name := map[uint8]string{unix.IPPROTO_UDP: socklbProgRetireUdp, unix.IPPROTO_TCP: socklbProgRetireTcp}[protocol]
	p, err := o.Program(Hook{AttachCgroup, name})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	iter, err := link.AttachIter(link.IterOptions{Program: p})
	if err != nil {
		return fmt.Errorf("iterate over sockets: %w", err)
	}
	err = each(func() error {
		sockets, err := iter.Open()
		if err != nil {
			return fmt.Errorf("iterate over sockets: %w", err)
		}
		_, err = io.Copy(io.Discard, sockets)
		return errors.Join(err, sockets.Close())
	})
	return errors.Join(err, iter.Close())
}

// WaitForPrograms returns when no program runs that read the maps before the call: membarrier waits for an RCU grace
// period, and programs run in RCU's read side. On a kernel without membarrier, a program that is late drops one packet.
func (*Objects) WaitForPrograms() {
	const membarrierGlobal = 1 // MEMBARRIER_CMD_GLOBAL, <linux/membarrier.h>
	_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
}
