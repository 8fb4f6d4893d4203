// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"

	"mustang/internal/datapath/objects"
	"mustang/internal/linkinfo"
	"mustang/internal/netns"
)

// Upgrade brings the datapath under o.Root from an earlier layout of maps to this build's while packets flow, and keeps
// services, endpoints and connections. Programs of another build are replaced. Unchanged: it has this build's layout, and the
// source guard stands where it should. After a killed call, another completes it.
// Errors: those of OpenExisting; *objects.LayoutError for a layout that it cannot read.
func Upgrade(ctx context.Context, o Options) (Change, error) {
	found, err := objects.Open(o.Root)
	if err == nil {
		err = found.Close()
	}
	change := Unchanged
	var layout *objects.LayoutError
	if errors.As(err, &layout) {
		change, err = Updated, upgrade(ctx, layout)
	}
	if err != nil {
		return change, err
	}
	pinned, err := objects.Create(ctx, o.Root, o.Sizes, replaceFilters) // replaces programs of other builds
	if err != nil {
		return change, err
	}
	outside, err := guardOutside(ctx, pinned)
	// Earlier layouts have nothing about the host itself.
	err = errors.Join(err, pinned.WithTables(ctx, func() error { return refresh(pinned) }))
	return max(change, outside), errors.Join(err, pinned.Close())
}

// upgrade looks for the devices in all network namespaces, the calling thread's first.
func upgrade(ctx context.Context, from *objects.LayoutError) error {
	return withNamespaces(func(cookies []uint64, by map[uint64]*netns.Namespace) error {
		return from.Upgrade(ctx, cookies, func(cookie uint64, fn func() error) error {
			if by[cookie] == nil {
				return fmt.Errorf("no name or process leads to the network namespace with cookie %d", cookie)
			}
			return by[cookie].Do(fn)
		})
	})
}

// withNamespaces calls fn with all network namespaces and their cookies, the calling thread's first.
func withNamespaces(fn func(cookies []uint64, by map[uint64]*netns.Namespace) error) (err error) {
	snapshot, err := linkinfo.Take()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, snapshot.Close()) }()
	own, err := netns.Current()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	by := make(map[uint64]*netns.Namespace)
	var cookies []uint64
	for _, ns := range append([]*netns.Namespace{own}, snapshot.Namespaces()...) {
		cookie, err := ns.Cookie()
		if err != nil {
			return err
		}
		if by[cookie] == nil {
			by[cookie] = ns
			cookies = append(cookies, cookie)
		}
	}
	return fn(cookies, by)
}
