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
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// The objects contain no path of the build machine, so that they are reproducible. Programs for packets need tcx, hence
// Linux 6.6, which has version 4 of the instruction set; programs for sockets need Linux 6.5, which has version 3.
//
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-mcpu=v4 -O2 -g -Wall -Wextra -Werror -ffile-prefix-map=../../..=." -type metric -type addr -type tuple -type drop_reason -type ct_flag -type ct_state -type endpoint_flag -type remote_flag -type device_role -type sender_flag -type ep_path -type attach_point -type event_kind -type event -type service_flag -type backend_state -type backend_flag -type owner -type ct_config -type id_alloc tc ../../../bpf/tc.bpf.c -- -I../../../bpf -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-mcpu=v3 -O2 -g -Wall -Wextra -Werror -ffile-prefix-map=../../..=." -type namespace_flag -type sk_scope -type sk_service -type sk_udp_backends -type sk_revnat_key -type addr_port -no-global-types socklb ../../../bpf/socklb.bpf.c -- -I../../../bpf -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go run digest_generate.go

// kernelTypes keeps the decoded types of the kernel (BTF), which take 60 ms to read, from one load of programs to the
// next. The garbage collector frees them if no load follows.
var kernelTypes = sync.Pool{New: func() any { return btf.NewCache() }}

// Program returns this build's pinned program. The packet programs of an attach point are loaded when the first link
// needs them: most hosts have one kind of link. Callers have the lock of the links.
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

// Renew does for open maps what Create does after opening. After an error call Create: maps may no longer be pinned.
func (o *Objects) Renew(ctx context.Context, also func(*Objects) error) error {
	if err := o.CheckPinned(); err != nil {
		return err
	}
	return o.replaceBuilds(ctx, also)
}

// replaceBuilds calls ensurePrograms with the lock of the links, if programs are missing or of another build.
func (o *Objects) replaceBuilds(ctx context.Context, also func(*Objects) error) error {
	others, lacking, err := o.otherBuilds()
	if err == nil && (lacking || len(others) > 0) {
		err = o.WithLinks(ctx, func() error { return o.ensurePrograms(also) })
	}
	if err != nil && o.CheckPinned() != nil {
		return errRemoved
	}
	return err
}

// otherBuilds returns the paths of pinned programs of other builds, and whether some for sockets are missing: a control
// group has had them.
func (o *Objects) otherBuilds() (others []string, lacking bool, err error) {
	pins, err := o.ProgramPins()
	sockets := 0
	for _, path := range pins {
		forSocket := filepath.Dir(path) == o.layout.socketPrograms
		switch name := filepath.Base(path); {
		case forSocket && strings.HasPrefix(name, socklbDigest+"-"):
			sockets++
		case forSocket || !strings.HasPrefix(name, tcDigest+"-"):
			others = append(others, path)
		}
	}
	_, statErr := os.Stat(o.layout.socketPrograms)
	return others, statErr == nil && sockets < len(socketHooks()), err
}

// ensurePrograms loads the programs for sockets if a control group has ever had them, and replaces attached programs
// of other builds. The pins of other builds go last: if the process dies, the next one completes the work. Callers
// have the lock of the links.
func (o *Objects) ensurePrograms(also func(*Objects) error) error {
	others, lacking, err := o.otherBuilds()
	if err == nil && lacking {
		err = o.loadSocketPrograms()
	}
	if err != nil || len(others) == 0 {
		return err
	}
	if err := o.updateLinks(); err != nil {
		return err
	}
	if also != nil {
		if err := also(o); err != nil {
			return err
		}
	}
	for _, path := range others {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("unpin program: %w", err)
		}
	}
	return nil
}

// LoadSocketPrograms loads and pins the programs for sockets, before the first of them is attached. Callers have the
// lock of the links.
func (o *Objects) LoadSocketPrograms() error {
	if err := os.MkdirAll(o.layout.socketPrograms, 0o700); err != nil {
		return fmt.Errorf("create pin directory: %w", err)
	}
	return o.ensurePrograms(nil)
}

// ProgramPins returns the paths of all pinned programs.
func (o *Objects) ProgramPins() ([]string, error) {
	var pins []string
	for _, dir := range []string{o.layout.programs, o.layout.socketPrograms} {
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

func (o *Objects) loadPrograms(at AttachPoint) error {
	spec, err := loadTc()
	if err != nil {
		return fmt.Errorf("read embedded object: %w", err)
	}
	if err := spec.Variables[tcVarConfig].Set(tcConfig{AttachPoint: uint8(at.find().number)}); err != nil {
		return fmt.Errorf("configure programs: %w", err)
	}
	lacks := UnsupportedError{Feature: "type information (CONFIG_DEBUG_INFO_BTF)", Kernel: "6.6"}
	return o.load(spec, at.Hooks(), o.maps, lacks)
}

func socketHooks() []Hook {
	return append(AttachCgroup.Hooks(), Hook{AttachCgroup, socklbProgRetireUdp}, Hook{AttachCgroup, socklbProgRetireTcp})
}

func (o *Objects) loadSocketPrograms() error {
	spec, err := loadSocklb()
	if err != nil {
		return fmt.Errorf("read embedded object: %w", err)
	}
	private, err := o.layout.openMaps(Sizes{Connections: o.Slots.Map.MaxEntries()}, true, true)
	if err != nil {
		return err
	}
	defer func() { _ = closeMaps(private) }()
	all := maps.Clone(o.maps)
	maps.Copy(all, private)
	lacks := UnsupportedError{Feature: "way to end sockets by BPF, or no type information", Kernel: "6.5"}
	return o.load(spec, socketHooks(), all, lacks)
}

// load loads programs of an object, which uses pinned maps by name, and pins them. lacks: the kernel can't.
func (o *Objects) load(spec *ebpf.CollectionSpec, hooks []Hook, pinned map[string]*ebpf.Map,
	lacks UnsupportedError) error {
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool {
		return !slices.ContainsFunc(hooks, func(h Hook) bool { return h.Program == name })
	})
	used := make(map[string]*ebpf.Map)
	for name, of := range spec.Maps {
		if m := pinned[name]; m != nil {
			of.MaxEntries, used[name] = m.MaxEntries(), m
		}
	}
	types := kernelTypes.Get().(*btf.Cache)
	defer kernelTypes.Put(types)
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: used, Cache: types})
	if errors.Is(err, ebpf.ErrNotSupported) {
		lacks.Err = err
		return &lacks
	}
	if err != nil {
		return fmt.Errorf("load programs: %w", err)
	}
	defer collection.Close()
	for _, h := range hooks {
		path := o.layout.programPin(h)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("unpin program: %w", err)
		}
		if err := collection.Programs[h.Program].Pin(path); err != nil {
			return fmt.Errorf("pin program %s: %w", filepath.Base(path), err)
		}
	}
	return nil
}

// RetireSockets calls each with a function that ends connected sockets whose service no longer has their backend. It
// ends sockets of one protocol in the calling thread's network namespace. For TCP, the service must also reset. It
// does nothing if no control group has ever had the programs for sockets: no socket is connected to a backend then.
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
