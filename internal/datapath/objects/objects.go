// SPDX-License-Identifier: Apache-2.0

// Package objects opens the maps, programs and links below a root directory.
package objects

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/cilium/ebpf"

	"mustang/internal/lock"
)

// Objects are the pinned maps, programs and links under one root. Methods may be called concurrently, and several processes
// may have the same root open.
type Objects struct {
	// Namespaces are the network namespaces with socket translation, by cookie.
	Namespaces *Table[uint64, SocketScope]
	// Tables are open after OpenTables.
	Tables

	// BeforeLink is called before a program is attached or detached; nil calls nothing. Tests stop or die there.
	BeforeLink func()

	layout  layout
	pinned  os.FileInfo // the directory of all pins
	opening sync.Mutex
	maps    tcMaps
	opened  bool
}

// Tables are the maps of packet translation.
type Tables struct {
	Services     *Table[ServiceKey, Service]
	ServiceAddrs *Table[Addr, uint32] // those at which programs answer echo requests, with the number of services
	Backends     *Table[BackendKey, Backend]
	LookUp       *Table[BackendKey, [64]uint16] // look-up tables: slots of backends
	// SourceRanges are the clients that services serve. Methods that list rows do not work.
	SourceRanges *Table[SourceRange, uint8]
	Connections  *Table[Tuple, ConnectionRow]
	Endpoints    *Table[Addr, Endpoint]
	Senders      *Table[SenderKey, Sender] // devices by which packets leave pods
	// Slots are the connections, of which Connections has the rows.
	Slots   *Slots
	Metrics *Table[uint32, []tcMetrics] // a row for each CPU
	// NodeState is what programs share.
	NodeState *NodeState
	// GuardedDevices are those of the host where the source guard sees what pods send to the host: the index of their pods' parent, by their
	// own.
	GuardedDevices *Table[uint32, uint32]
	// Uplinks have a row for each device that is one.
	Uplinks *Table[uint32, Uplink]
	// NodeAddresses are those at which services with the unspecified address are served.
	NodeAddresses *Table[Addr, uint32]
	serviceCounts *Table[uint32, []tcServiceCounts] // a row for each CPU
	// Policies are the maps of network policies, by name. Package policies has the types of their rows.
	Policies map[string]*ebpf.Map
}

// Create opens what is pinned under root, DefaultRoot if empty, and creates what is missing. Programs of another build than
// this one's are replaced, in place where they are attached, so that no packet misses a program. Sizes count for maps that
// are created. also replaces what is attached without a link, before the other builds' programs are removed; nil: there is none.
// Errors: ErrNotRoot, *BPFFSError, *LayoutError, *lock.Error, *UnsupportedError on a kernel before 6.6.
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

// create opens the maps, and creates what is missing.
func create(ctx context.Context, l layout, sizes Sizes) (_ *Objects, err error) {
	if _, err := os.Stat(l.version()); errors.Is(err, os.ErrNotExist) {
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
	_, statErr := os.Stat(l.version())
	defer func() {
		if err != nil && errors.Is(statErr, os.ErrNotExist) {
			_ = os.RemoveAll(l.version())
		}
	}()
	if err := errors.Join(removeUnloaded(l.root), l.create()); err != nil {
		return nil, err
	}
	return openMaps(l, sizes.byName())
}

// Open opens what is pinned under root, DefaultRoot if empty, and creates nothing. The error matches os.ErrNotExist if
// nothing is pinned there; others are those of Create.
func Open(root string) (*Objects, error) {
	l, err := checkRoot(root)
	if err != nil {
		return nil, err
	}
	if err := l.check(); err != nil {
		return nil, err
	}
	if !l.hasTables() { // a process that made them was killed
		return nil, fmt.Errorf("open %q: its maps are incomplete: %w", l.root, os.ErrNotExist)
	}
	return openMaps(l, nil)
}

// openMaps opens the maps, and creates those that are missing if sizes are given. Existing tables are opened by the first
// call that needs them: a pod with socket translation alone comes and goes without, and to open them takes longer than all
// else of that.
func openMaps(l layout, sizes map[string]uint32) (*Objects, error) {
	pinned, err := os.Stat(l.version())
	if err != nil {
		return nil, fmt.Errorf("open pin directory: %w", err)
	}
	o := &Objects{layout: l, pinned: pinned, Namespaces: &Table[uint64, SocketScope]{Name: socklbMapNamespaces}}
	sockets := pinner{layout: l, sizes: sizes, load: loadSocklb}
	if err := sockets.open(map[string]**ebpf.Map{socklbMapNamespaces: &o.Namespaces.Map}); err != nil {
		return nil, err
	}
	if sizes == nil || l.hasTables() {
		return o, nil
	}
	if err := o.openTables(sizes); err != nil {
		_ = o.Namespaces.Map.Close()
		return nil, err
	}
	return o, nil
}

// OpenTables opens the tables, unless they are open.
func (o *Objects) OpenTables() error { return o.openTables(nil) }

func (o *Objects) openTables(sizes map[string]uint32) error {
	o.opening.Lock()
	defer o.opening.Unlock()
	if o.opened {
		return nil
	}
	p := pinner{layout: o.layout, sizes: sizes, load: loadTc}
	if err := p.open(slots(&o.maps)); err != nil {
		return err
	}
	o.Tables = Tables{
		Services:     &Table[ServiceKey, Service]{o.maps.Services, tcMapServices},
		ServiceAddrs: &Table[Addr, uint32]{o.maps.ServiceAddrs, tcMapServiceAddrs},
		Backends:     &Table[BackendKey, Backend]{o.maps.Backends, tcMapBackends},
		LookUp:       &Table[BackendKey, [64]uint16]{o.maps.BackendLut, tcMapBackendLut},
		SourceRanges: &Table[SourceRange, uint8]{o.maps.SourceRanges, tcMapSourceRanges},
		Connections:  &Table[Tuple, ConnectionRow]{o.maps.Connections, tcMapConnections},
		Endpoints:    &Table[Addr, Endpoint]{o.maps.Endpoints, tcMapEndpoints},
		Senders:      &Table[SenderKey, Sender]{o.maps.SourceGuard, tcMapSourceGuard},
		Slots:        &Slots{Map: o.maps.Slots, node: &NodeState{o.maps.NodeState}},
		Metrics:      &Table[uint32, []tcMetrics]{o.maps.Metrics, tcMapMetrics},
		NodeState:    &NodeState{o.maps.NodeState},
		Uplinks:      &Table[uint32, Uplink]{o.maps.Uplinks, tcMapUplinks},

		NodeAddresses:  &Table[Addr, uint32]{o.maps.NodeAddresses, tcMapNodeAddresses},
		serviceCounts:  &Table[uint32, []tcServiceCounts]{o.maps.ServiceCounts, tcMapServiceCounts},
		GuardedDevices: &Table[uint32, uint32]{o.maps.GuardedDevices, tcMapGuardedDevices},
		Policies: map[string]*ebpf.Map{
			tcMapPolicySettings: o.maps.PolicySettings, tcMapIdentities: o.maps.Identities, tcMapVerdicts: o.maps.Verdicts,
			tcMapPolicyPorts: o.maps.PolicyPorts, tcMapPolicyNumbers: o.maps.PolicyNumbers,
		},
	}
	o.opened = true
	return nil
}

// Close frees what this process holds. Pinned objects stay, and the programs go on running.
func (o *Objects) Close() error {
	o.opening.Lock()
	defer o.opening.Unlock()
	err := o.Namespaces.Map.Close()
	if o.opened {
		o.opened = false
		err = errors.Join(err, o.maps.Close())
	}
	if err != nil {
		return fmt.Errorf("close maps: %w", err)
	}
	return nil
}

// Root returns the directory that everything is pinned under.
func (o *Objects) Root() string { return o.layout.root }

// Lock waits until no other process or goroutine has the lock of the rows, and takes it. The error is a *lock.Error when ctx
// ends first, or after 30 s if ctx has no deadline; it matches os.ErrNotExist if what o has open was removed since. Nobody
// waits for a grace period with this lock.
func (o *Objects) Lock(ctx context.Context) (*lock.Lock, error) {
	return lock.Take(ctx, o.layout.root, o.CheckPinned)
}

// LockTables takes the lock of the rows and opens the tables.
func (o *Objects) LockTables(ctx context.Context) (*lock.Lock, error) {
	lock, err := o.Lock(ctx)
	if err != nil {
		return nil, err
	}
	if err := o.OpenTables(); err != nil {
		lock.Unlock()
		return nil, err
	}
	return lock, nil
}

// WithTables calls fn with the lock of the rows.
func (o *Objects) WithTables(ctx context.Context, fn func() error) error {
	lock, err := o.LockTables(ctx)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	return fn()
}

// LockLinks takes the lock of programs and links, as Lock does that of the rows. If both are needed, this one comes first.
// The kernel lets only one program at a time be attached to a device or detached, and waits for a grace period each time.
func (o *Objects) LockLinks(ctx context.Context) (*lock.Lock, error) {
	return lock.Take(ctx, o.layout.links(), o.CheckPinned)
}

// CheckPinned returns an error if what o has open is no longer pinned: changes of removed maps would reach no program. Without
// a lock, that may be so a moment later.
func (o *Objects) CheckPinned() error {
	now, err := os.Stat(o.layout.version())
	if err == nil && !os.SameFile(now, o.pinned) {
		err = os.ErrNotExist
	}
	if err != nil {
		return fmt.Errorf("%q was removed since it was opened: %w", o.layout.root, os.ErrNotExist)
	}
	return nil
}
