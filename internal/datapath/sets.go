// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"os"
	"slices"

	"mustang/internal/netns"
	"mustang/internal/service"
)

// Apply makes the owner's endpoints exactly those of specs: it puts each, and deletes the owner's others. The result
// counts endpoints, not rows. An endpoint that fails does not keep the others from being put, but no endpoint is
// deleted then. The same call again does the rest. Errors: those of Put, and *ConflictError for a device that is
// another owner's endpoint.
func (e Endpoints) Apply(ctx context.Context, owner service.Owner, specs []EndpointSpec) (result Result, err error) {
	if err := requireOwner(owner); err != nil {
		return result, err
	}
	have, err := e.List(ctx)
	if err != nil {
		return result, err
	}
	keep := make(map[uint32]bool)
	var errs []error
	for _, spec := range specs {
		spec.Owner = owner
		rows, change, err := e.put(ctx, spec, true)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		keep[rows[0].ID] = true
		result.count(change)
	}
	if len(errs) > 0 {
		return result, errors.Join(errs...)
	}
	for _, row := range have {
		if row.Owner != owner || keep[row.ID] {
			continue
		}
		keep[row.ID] = true // an endpoint has a row for each address
		if err := e.Delete(ctx, row.ID); err != nil && !errors.Is(err, os.ErrNotExist) {
			return result, err
		}
		result.Deleted++
	}
	return result, nil
}

// Apply makes the uplinks of a network namespace exactly the named devices. Uplinks of other namespaces stay. The same
// call again completes one that failed. Errors: those of FindUplink.
func (s Uplinks) Apply(ctx context.Context, ns *netns.Namespace, ifnames []string) (result Result, err error) {
	cookie, err := ns.Cookie()
	if err != nil {
		return result, err
	}
	want := make([]Uplink, 0, len(ifnames))
	for _, ifname := range ifnames {
		u, err := FindUplink(ns, ifname)
		if err != nil {
			return result, err
		}
		want = append(want, u)
	}
	for _, ifname := range ifnames {
		change, err := s.Put(ctx, ns, ifname)
		if err != nil {
			return result, err
		}
		result.count(change)
	}
	have, err := s.List(ctx)
	if err != nil {
		return result, err
	}
	for _, u := range have {
		if u.Host != cookie || slices.Contains(want, u) {
			continue
		}
		if err := s.Delete(ctx, u); err != nil && !errors.Is(err, os.ErrNotExist) {
			return result, err
		}
		result.Deleted++
	}
	return result, nil
}

// count adds a change of one object.
func (r *Result) count(change Change) {
	switch change {
	case Added:
		r.Added++
	case Updated:
		r.Updated++
	case Unchanged:
		r.Unchanged++
	}
}

// change returns what became of the only object.
func (r *Result) change() Change {
	switch {
	case r.Added > 0:
		return Added
	case r.Updated > 0:
		return Updated
	}
	return Unchanged
}
