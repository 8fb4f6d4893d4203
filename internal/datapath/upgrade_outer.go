// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"

	"mustang/internal/datapath/guard"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// GuardParents attaches the source guard to devices of the host that were made after the pods on the same parent. Without, such pods drop
// what the host sends by them, once policies are in force, as they do what a pod sends in the node's name. Pods that are not found are left
// out. Without pods on a parent it does nothing.
func (d *Datapath) GuardParents(ctx context.Context) (Change, error) {
	if err := d.objects.OpenTables(); err != nil {
		return Unchanged, err
	}
	for row, err := range d.objects.Senders.All() {
		if err != nil {
			return Unchanged, err
		}
		if row.Value.Parent != 0 {
			return guardOutside(ctx, d.objects)
		}
	}
	return Unchanged, nil
}

// guardOutside attaches the source guard to devices of the host for pods on a parent, which earlier builds did not. Pods that are
// not found, or whose parent is in another namespace than the host's, are left to their next Put.
func guardOutside(ctx context.Context, o *objects.Objects) (change Change, err error) {
	links, err := lockLinks(ctx, o)
	if err != nil {
		return Unchanged, err
	}
	defer links.Unlock()
	state, err := readState(o)
	if err != nil {
		return Unchanged, err
	}
	err = withNamespaces(func(cookies []uint64, by map[uint64]*netns.Namespace) error {
		if state.Host != 0 { // else any may be the host
			cookies = []uint64{state.Host}
		}
		for row, err := range o.Senders.All() {
			if err != nil {
				return err
			}
			for _, cookie := range cookies {
				did, err := guardPodOutside(ctx, o, row, [2]*netns.Namespace{by[row.Key.Netns], by[cookie]})
				if err != nil {
					return err
				}
				change = max(change, did)
			}
		}
		return nil
	})
	return change, err
}

// guardPodOutside does so for a pod in the first namespace if its parent is in the second.
func guardPodOutside(ctx context.Context, o *objects.Objects, row objects.Row[objects.SenderKey, objects.Sender], in [2]*netns.Namespace) (Change, error) {
	pod, host := in[0], in[1]
	if row.Key.Ifindex == 0 || pod == nil || host == nil {
		return Unchanged, nil
	}
	name, err := rtnl.In(pod).OnParentIn(host, int(row.Key.Ifindex))
	if err != nil || name == "" {
		return Unchanged, err
	}
	t, err := findTarget(EndpointSpec{Namespace: pod, IfName: name, Host: host})
	if err != nil {
		return Unchanged, err
	}
	defer t.Close()
	missing, err := guard.Missing(o, t.Device)
	if err != nil || len(missing) == 0 {
		return Unchanged, err
	}
	if err := requireHost(ctx, o, t.Host, fmt.Sprintf("interface %q", name)); err != nil {
		return Unchanged, err
	}
	err = o.WithTables(ctx, func() error {
		row.Value.Parent = uint32(t.Parent)
		_, err := guard.Store(o, row.Key, row.Value)
		return err
	})
	return Updated, errors.Join(err, guard.Attach(o, t.Device))
}
