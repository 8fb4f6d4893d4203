// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
)

// Upgrade brings the datapath under o.Root from an earlier layout of maps to this build's while packets flow, and keeps
// services, endpoints and connections. Unchanged: it has this build's already. After a killed call, another completes it.
// Errors: those of OpenExisting; *objects.LayoutError for a layout that it cannot read.
func Upgrade(ctx context.Context, o Options) (Change, error) {
	pinned, err := objects.Open(o.Root)
	var layout *objects.LayoutError
	switch {
	case errors.As(err, &layout):
		return Updated, layout.Upgrade(ctx, within)
	case err != nil:
		return Unchanged, err
	}
	return Unchanged, pinned.Close()
}

// errFound ends a search.
var errFound = errors.New("found")

// within calls fn in the network namespace with a cookie; 0 is that of the calling thread.
func within(cookie uint64, fn func() error) error {
	if cookie == 0 {
		return fn()
	}
	var result error
	err := eachNamespace(func(ns *netns.Namespace, c uint64) error {
		if c != cookie {
			return nil
		}
		result = ns.Do(fn)
		return errFound
	})
	if errors.Is(err, errFound) {
		return result
	}
	return errors.Join(err, fmt.Errorf("no name or process leads to the network namespace with cookie %d", cookie))
}
