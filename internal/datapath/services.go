// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"mustang/internal/datapath/rows"
	"mustang/internal/service"
)

// Get returns the service with a key. Errors: *NotFoundError; *ConflictError if a service of another protocol has a
// part of the frontend. It takes no lock.
func (s Services) Get(ctx context.Context, key service.Key) (service.Service, error) {
	found, err := s.at(ctx, key)
	if err != nil {
		return service.Service{}, err
	}
	have, err := exactly(key, found)
	if err == nil && have == nil {
		err = &NotFoundError{What: fmt.Sprintf("service %s", key)}
	}
	if err != nil {
		return service.Service{}, err
	}
	return *have, nil
}

// Count returns the number of rows of services; one of both TCP and UDP has two.
func (s Services) Count() (n int, err error) {
	for _, err := range s.o.Services.All() {
		if err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

// Has reports whether a packet to an address and port is one to a service, as programs see it.
func (s Services) Has(key service.Key) (found bool, err error) {
	at := []netip.AddrPort{key.Frontend}
	_, ofNode, err := s.o.NodeAddresses.Get(rows.EncodeAddr(key.Frontend.Addr()))
	if ofNode {
		all := netip.IPv4Unspecified()
		if key.Frontend.Addr().Is6() {
			all = netip.IPv6Unspecified()
		}
		at = append(at, netip.AddrPortFrom(all, key.Frontend.Port()))
	}
	for _, frontend := range at {
		for _, p := range []service.Protocol{key.Protocol, service.Any} {
			if err == nil && !found {
				_, found, err = s.o.Services.Get(rows.ServiceKey(frontend, p))
			}
		}
	}
	return found, err
}

// Generation returns a number that each change of services changes, or 0 while one is under way. The error matches
// os.ErrNotExist if the datapath was removed since it was opened.
func (s Services) Generation() (uint32, error) {
	if err := s.o.CheckPinned(); err != nil {
		return 0, err
	}
	state, err := s.o.NodeState.IDs()
	if state.Retiring != 0 {
		return 0, err
	}
	return state.LastRevision, err
}

// List returns all services, sorted by ID. It takes no lock.
func (s Services) List(ctx context.Context) ([]service.Service, error) {
	t, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(t.services, func(a, b service.Service) int { return int(a.ID) - int(b.ID) })
	return t.services, nil
}

// Memory returns the bytes of the kernel's memory in which all services, their backends and look-up tables are. The sum
// includes the maps' hash tables, whose size does not depend on the number of rows.
func (s Services) Memory() (sum uint64, err error) {
	for _, memory := range []func() (uint64, error){s.o.Services.Memory, s.o.Backends.Memory, s.o.LookUp.Memory,
		s.o.ServiceAddrs.Memory} {
		n, err := memory()
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func (s Services) size() rows.Counts {
	return rows.Counts{Backends: int(s.o.Backends.Size()), Blocks: int(s.o.LookUp.Size()),
		SourceRanges: int(s.o.SourceRanges.Size())}
}

// Room returns the maximum numbers of rows for services. Errors: as of opening the maps.
func (s Services) Room() (rows.Counts, error) {
	return s.size().Plus(rows.Counts{Services: int(s.o.Services.Size())}, 1), nil
}

// Apply makes the owner's set of services exactly want. It writes only rows that differ, in chunks: it has the lock
// for some milliseconds at a time, and never while it waits for programs. Services, connections and sockets are then
// in the same state as after Put and Delete of each changed service. All of want is checked before the first write:
// errors as of Put, and two services with one frontend. If ctx ends or the process is killed in between, the written
// services are served, and the same call again does the rest. The result is right also after an error.
func (s Services) Apply(ctx context.Context, owner service.Owner, want []service.Service) (Result, error) {
	w := &writer{Services: s, owner: owner}
	err := w.apply(ctx, want)
	return w.result, err
}

// Change puts services of an owner and deletes others of it, as Put and Delete of each, but waits for the programs
// once. Keys without a service of the owner are ignored. All is checked before the first write: errors as of Put and
// Delete. As with Apply, written changes stay if ctx ends or the process is killed, and the same call does the rest.
func (s Services) Change(ctx context.Context, owner service.Owner, put []service.Service,
	remove []service.Key) (Result, error) {
	w := &writer{Services: s, owner: owner}
	err := w.change(ctx, put, remove)
	return w.result, err
}

// Put creates a service, or changes it if it exists, and returns its ID, which lasts as long as the service. New
// connections go to the new backends from one moment on. Open TCP connections keep their backends, unless OnRemove is
// Reset; UDP leaves backends that are gone. A frontend with a loopback address is served by socket translation only,
// in the network namespaces of hosts. Errors: as of service.Service.Validate and service.CheckHealthPorts,
// *FullError. *ConflictError: the service belongs to another owner; a service of another protocol has a part of the
// frontend; a pod has its address (the pod's own ports would be unreachable); a backend is another service.
func (s Services) Put(ctx context.Context, owner service.Owner, want service.Service) (Change, uint32, error) {
	w := &writer{Services: s, owner: owner, refuse: s.refuseFrontends}
	err := w.change(ctx, []service.Service{want}, nil)
	return w.result.change(), w.lastID, err
}

// Delete removes a service of an owner; of protocol Any, the services that the owner has at the frontend, whatever
// their protocols. Open TCP connections stay, unless OnRemove is Reset. Errors: *NotFoundError; *ConflictError if only
// others have services there.
func (s Services) Delete(ctx context.Context, owner service.Owner, key service.Key) error {
	w := &writer{Services: s, owner: owner}
	if err := w.change(ctx, nil, []service.Key{key}); err != nil || w.result.Deleted > 0 {
		return err
	}
	found, err := s.at(ctx, service.Key{Frontend: key.Frontend})
	if err != nil {
		return err
	}
	for _, f := range found {
		if f.Owner != owner && (key.Protocol == service.Any || key.Protocol == f.Protocol) {
			return ownerConflict(f, f)
		}
	}
	return &NotFoundError{What: fmt.Sprintf("service %s", key)}
}

func (r *Result) change() Change {
	switch {
	case r.Added > 0:
		return Added
	case r.Updated > 0:
		return Updated
	}
	return Unchanged
}

// Services returns the handle of the services.
func (d *Datapath) Services() Services { return Services{d.objects} }
