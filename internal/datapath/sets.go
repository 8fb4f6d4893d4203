// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"os"
	"slices"

	"mustang/internal/netns"
)

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
