// SPDX-License-Identifier: Apache-2.0

// Package objects opens the BPF objects below a root directory.
package objects

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"

	"mustang/internal/lock"
)

// Objects are the pinned maps, programs and links under one root. Methods may be called concurrently, and several
// processes may have the same root open.
type Objects struct {
	tables

	// BeforeLink is called before a program is attached or detached; nil calls nothing. Tests stop or die there.
	BeforeLink func()

	layout layout
	pinned os.FileInfo // the directory of all pins
	maps   map[string]*ebpf.Map
}

type tables struct {
	Namespaces   *Table[uint64, SocketScope] // the network namespaces with socket translation, by cookie
	Services     *Table[ServiceKey, Service]
	ServiceAddrs *Table[Addr, uint32] // at which programs answer echo requests, with the number of services
	Backends     *Table[BackendKey, Backend]
	LookUp       *Table[BackendKey, [64]uint16] // look-up tables: slots of backends
	// SourceRanges are the clients that services serve. Methods that list rows do not work.
	SourceRanges *Table[SourceRange, uint8]
	Connections  *Table[Tuple, ConnectionRow]
	Endpoints    *Table[Addr, Endpoint]
	Senders      *Table[SenderKey, Sender]   // devices by which packets leave pods
	Slots        *Slots                      // the connections; Connections are their rows
	Metrics      *Table[uint32, []tcMetrics] // a row for each CPU
	NodeState    *NodeState                  // the shared state of programs
	// Devices are devices of the host, with a row for each role: uplinks, and those at which the source guard sees what
	// pods send to the host.
	Devices *Table[uint64, Device]
	// NodeAddresses are the addresses at which services with the unspecified address are served.
	NodeAddresses *Table[Addr, uint32]
	serviceCounts *Table[uint32, []tcServiceCounts] // a row for each CPU
	// Remotes are the ranges of pods of other nodes, a trie. Package datapath has the types of its rows.
	Remotes *ebpf.Map
	// Policies are the maps of network policies, by name. Package policies has the types of their rows.
	Policies map[string]*ebpf.Map
}

// Create opens the pins under root, DefaultRoot if empty, and creates missing ones. It replaces programs of other
// builds, in place where they are attached, so that no packet misses a program. Sizes count for maps that are created.
// also replaces programs that are attached without a link, before the other builds' programs are removed; nil: there
// are none. Errors: ErrNotRoot, ErrNoBPFFS, *LayoutError, *lock.Error, *UnsupportedError on a kernel before 6.6.
func Create(ctx context.Context, root string, sizes Sizes, also func(*Objects) error) (*Objects, error) {
	l, err := checkRoot(root)
	if err != nil {
		return nil, err
	}
	for {
		o, err := create(ctx, l, sizes)
		if err == nil {
			if err = o.replaceBuilds(ctx, also); err != nil {
				_ = o.Close()
				o = nil
			}
		}
		// Another process may remove the directory between our making and our locking it.
		if errors.Is(err, errRemoved) {
			continue
		}
		return o, err
	}
}

// errRemoved reports that the root was removed while it was being opened.
var errRemoved = errors.New("root was removed")

func create(ctx context.Context, l layout, sizes Sizes) (_ *Objects, err error) {
	if _, err := os.Stat(l.version); errors.Is(err, os.ErrNotExist) {
		if err := probeTCX(); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(l.root, 0o700); err != nil {
			return nil, fmt.Errorf("create pin directory: %w", err)
		}
	}
	held, err := lock.Take(ctx, l.root, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errRemoved
	}
	if err != nil {
		return nil, err
	}
	defer held.Unlock()
	if err := l.check(); err != nil {
		return nil, err
	}
	// Only now: another process may have created it while we waited for the lock.
	_, statErr := os.Stat(l.version)
	defer func() {
		if err != nil && errors.Is(statErr, os.ErrNotExist) {
			_ = os.RemoveAll(l.version)
		}
	}()
	if err := errors.Join(l.removeUnloaded(), l.create()); err != nil {
		return nil, err
	}
	return openObjects(l, sizes, true)
}

// Open opens the pins under root, DefaultRoot if empty, and creates nothing. If nothing is pinned there, the
// error matches os.ErrNotExist; other errors are as of Create.
func Open(root string) (*Objects, error) {
	l, err := checkRoot(root)
	if err != nil {
		return nil, err
	}
	if err := l.check(); err != nil {
		return nil, err
	}
	return openObjects(l, Sizes{}, false)
}

func openObjects(l layout, sizes Sizes, create bool) (*Objects, error) {
	pinned, err := os.Stat(l.version)
	if err != nil {
		return nil, fmt.Errorf("open pin directory: %w", err)
	}
	m, err := l.openMaps(sizes, false, create)
	if err != nil {
		return nil, err
	}
	policies := make(map[string]*ebpf.Map)
	for _, name := range []string{tcMapPolicySettings, tcMapIdentities, tcMapVerdicts, tcMapPolicyPorts,
		tcMapPolicyNumbers} {
		policies[name] = m[name]
	}
	node := &NodeState{m[tcMapNodeState]}
	return &Objects{layout: l, pinned: pinned, maps: m, tables: tables{
		Namespaces:    &Table[uint64, SocketScope]{m[socklbMapNamespaces], socklbMapNamespaces},
		Services:      &Table[ServiceKey, Service]{m[tcMapServices], tcMapServices},
		ServiceAddrs:  &Table[Addr, uint32]{m[tcMapServiceAddrs], tcMapServiceAddrs},
		Backends:      &Table[BackendKey, Backend]{m[tcMapBackends], tcMapBackends},
		LookUp:        &Table[BackendKey, [64]uint16]{m[tcMapBackendLut], tcMapBackendLut},
		SourceRanges:  &Table[SourceRange, uint8]{m[tcMapSourceRanges], tcMapSourceRanges},
		Connections:   &Table[Tuple, ConnectionRow]{m[tcMapConnections], tcMapConnections},
		Endpoints:     &Table[Addr, Endpoint]{m[tcMapEndpoints], tcMapEndpoints},
		Senders:       &Table[SenderKey, Sender]{m[tcMapSourceGuard], tcMapSourceGuard},
		Slots:         &Slots{Map: m[tcMapSlots], node: node},
		Metrics:       &Table[uint32, []tcMetrics]{m[tcMapMetrics], tcMapMetrics},
		NodeState:     node,
		Devices:       &Table[uint64, Device]{m[tcMapDevices], tcMapDevices},
		Remotes:       m[tcMapRemotes],
		NodeAddresses: &Table[Addr, uint32]{m[tcMapNodeAddresses], tcMapNodeAddresses},
		serviceCounts: &Table[uint32, []tcServiceCounts]{m[tcMapServiceCounts], tcMapServiceCounts},
		Policies:      policies,
	}}, nil
}

// Close frees the descriptors of this process. Pinned objects stay, and the programs go on running.
func (o *Objects) Close() error {
	if err := closeMaps(o.maps); err != nil {
		return fmt.Errorf("close maps: %w", err)
	}
	return nil
}

// Root returns the directory that everything is pinned under.
func (o *Objects) Root() string { return o.layout.root }

// Lock waits until no other process or goroutine has the lock of the rows, and takes it. If ctx ends first, or after
// 30 s if ctx lacks a deadline, the error is a *lock.Error. It matches os.ErrNotExist if o's pins were removed since.
// No caller waits for a grace period with this lock.
func (o *Objects) Lock(ctx context.Context) (*lock.Lock, error) {
	return lock.Take(ctx, o.layout.root, o.CheckPinned)
}

// WithLock calls fn with the lock of the rows.
func (o *Objects) WithLock(ctx context.Context, fn func() error) error {
	return locked(ctx, o.Lock, fn)
}

// LockLinks takes the lock of programs and links, as Lock takes the lock of the rows. If both are needed, take this one
// first. The kernel attaches or detaches only one program of a device at a time, and waits a grace period each time.
func (o *Objects) LockLinks(ctx context.Context) (*lock.Lock, error) {
	return lock.Take(ctx, o.layout.links, o.CheckPinned)
}

// WithLinks calls fn with the lock of programs and links.
func (o *Objects) WithLinks(ctx context.Context, fn func() error) error {
	return locked(ctx, o.LockLinks, fn)
}

func locked(ctx context.Context, take func(context.Context) (*lock.Lock, error), fn func() error) error {
	held, err := take(ctx)
	if err != nil {
		return err
	}
	defer held.Unlock()
	return fn()
}

// CheckPinned returns an error if o's objects are no longer pinned: changes of removed maps would reach no program.
// Without a lock, they may be removed a moment later.
func (o *Objects) CheckPinned() error {
	now, err := os.Stat(o.layout.version)
	if err == nil && !os.SameFile(now, o.pinned) {
		err = os.ErrNotExist
	}
	if err != nil {
		return fmt.Errorf("%q was removed since it was opened: %w", o.layout.root, os.ErrNotExist)
	}
	return nil
}
