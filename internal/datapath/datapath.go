// SPDX-License-Identifier: Apache-2.0

// Package datapath stores the state of a node's network in the pinned maps of Mustang's BPF programs. The maps, and the
// files of network policies, are the only state. Any number of processes may open it; the programs run without one too.
//
// Everything is pinned under one root directory. The directory is the lock of the rows, and ROOT/v10/links is the lock
// of programs and links:
//
//	ROOT/v10/maps/services            maps, by name
//	ROOT/v10/progs/3f0c...-host-...   programs for packets, by the digest of their object
//	ROOT/v10/socks/91ab...-connect4   programs for sockets, once a control group has had them
//	ROOT/v10/links/3-host-from_pod    attachments, by the ID of the endpoint, uplink or control group
package datapath

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/service"
)

// Options set where the datapath is pinned and how much its maps hold.
type Options struct {
	Root  string        // a directory on a bpffs that belongs to the datapath alone; objects.DefaultRoot if empty
	Sizes objects.Sizes // count only when the maps are created: existing maps keep theirs
}

// Datapath is the pinned maps and programs under one root. Its methods, and the methods of its handles, may be called
// concurrently. Methods that change something wait for a lock until the context ends, or for 30 s if it lacks a
// deadline; the error is then a *lock.Error. Changes of services do not wait for programs to attach or detach.
type Datapath struct {
	objects *objects.Objects
}

// Open opens the datapath under o.Root, and creates missing parts. It replaces programs of other builds, in place
// where they are attached, so that no packet misses a program. Errors: objects.ErrNotRoot, objects.ErrNoBPFFS,
// *objects.LayoutError, *objects.UnsupportedError on a kernel before 6.6.
func Open(ctx context.Context, o Options) (*Datapath, error) {
	pinned, err := objects.Create(ctx, o.Root, o.Sizes, replaceFilters)
	if err != nil {
		return nil, err
	}
	return &Datapath{objects: pinned}, nil
}

// OpenExisting opens the datapath under o.Root and creates nothing. The error matches os.ErrNotExist if there is none.
func OpenExisting(o Options) (*Datapath, error) {
	pinned, err := objects.Open(o.Root)
	if err != nil {
		return nil, err
	}
	return &Datapath{objects: pinned}, nil
}

// Remove detaches all programs, and removes all pins under root (objects.DefaultRoot). Errors: as of objects.Remove.
func Remove(ctx context.Context, root string) error {
	if info, err := os.Lstat(filepath.Clean(cmp.Or(root, objects.DefaultRoot))); err != nil ||
		info.Mode()&os.ModeSymlink != 0 {
		return objects.Remove(ctx, root) // which returns the reason
	}
	// Without, or with another layout, all programs are links.
	if d, err := OpenExisting(Options{Root: root}); err == nil {
		if err := errors.Join(d.Guards().DeleteAll(ctx), d.Close()); err != nil {
			return err
		}
	}
	return objects.Remove(ctx, root)
}

// Close frees the descriptors of this process. Pinned objects stay, and the programs go on running.
func (d *Datapath) Close() error { return d.objects.Close() }

// ConnectionTable returns the handle of the connections, which programs open and close at any time.
func (d *Datapath) ConnectionTable() flows.Table { return flows.NewTable(d.objects, d.Services().at) }

// Connections returns all of [flows.Table.List].
func (d *Datapath) Connections() ([]flows.Connection, error) {
	return d.ConnectionTable().List(flows.Filter{})
}

// Policies returns the handle of the network policies.
func (d *Datapath) Policies() policies.Policies { return policiesOf(d.objects) }

// Flows returns the handle of counters, and of connections and drops as they occur.
func (d *Datapath) Flows() flows.Flows { return flows.Flows{Objects: d.objects} }

// ProgramPins returns the paths of all pinned programs.
func (d *Datapath) ProgramPins() ([]string, error) { return d.objects.ProgramPins() }

// Shared is a datapath that a process keeps open, under one root: opening all maps takes longer than a change.
// Methods may be called concurrently. Do not close their results. If the datapath was removed since, the next call
// opens the new one, and the garbage collector frees the old one once no call uses it.
type Shared struct {
	mu   sync.Mutex
	open *Datapath // nil before the first call
}

// Open is the function Open.
func (s *Shared) Open(ctx context.Context, o Options) (*Datapath, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open != nil && s.open.objects.Renew(ctx, replaceFilters) == nil {
		return s.open, nil
	}
	return s.keep(Open(ctx, o))
}

// OpenExisting is the function OpenExisting.
func (s *Shared) OpenExisting(o Options) (*Datapath, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open != nil && s.open.objects.CheckPinned() == nil {
		return s.open, nil
	}
	return s.keep(OpenExisting(o))
}

func (s *Shared) keep(d *Datapath, err error) (*Datapath, error) {
	s.open = d
	return d, err
}

// errNumbersUsedUp reports that a number that is never reused has reached its end, after four billion changes.
// Connections and services go on.
var errNumbersUsedUp = errors.New(
	"the numbers of services, their revisions, or endpoints are used up: make the datapath anew (mustang datapath unload)")

// Change is the effect of a call.
type Change int

// The changes.
const (
	Unchanged Change = iota
	Added
	Updated
)

// String returns the lower-case name.
func (c Change) String() string { return [...]string{"unchanged", "added", "updated"}[c] }

// NotFoundError names an object that does not exist. It matches os.ErrNotExist.
type NotFoundError struct {
	What string // names the object: "service 10.96.0.100:5201/tcp"
}

func (e *NotFoundError) Error() string { return e.What + " does not exist" }

// Is makes the error match os.ErrNotExist.
func (e *NotFoundError) Is(target error) bool { return target == os.ErrNotExist }

// ConflictError reports that another object uses the frontend, address or control group.
type ConflictError struct {
	What  string        // describes the conflict
	Owner service.Owner // the owner of the other service; NoOwner for other objects
}

func (e *ConflictError) Error() string { return e.What }

// DeviationError lists how an object differs from the state in which it was created.
type DeviationError struct {
	What       string // an endpoint, a host or an uplink, with its name
	Deviations []string
}

func (e *DeviationError) Error() string { return e.What + ": " + strings.Join(e.Deviations, "; ") }

// deviation returns nil if nothing was found.
func deviation(what string, found ...string) error {
	if len(found) == 0 {
		return nil
	}
	return &DeviationError{What: what, Deviations: found}
}
