// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"

	"mustang/internal/datapath/device"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// Upgrade replaces the programs of another build by those of this one, as Open does, and then guards devices as
// GuardParents does.
func (d *Datapath) Upgrade(ctx context.Context) (Change, error) {
	if err := d.objects.Renew(ctx, replaceFilters); err != nil {
		return Unchanged, err
	}
	return d.GuardParents(ctx)
}

// GuardParents attaches the source guard to devices of the host that were made after the pods on the same parent.
// Without, such pods drop what the host sends by them, once policies are in force, as they do what a pod sends in the
// node's name. Pods that are not found are left out. Without pods on a parent it does nothing.
func (d *Datapath) GuardParents(ctx context.Context) (change Change, err error) {
	var onParents []device.SenderRow
	for row, err := range d.objects.Senders.All() {
		if err != nil {
			return Unchanged, err
		}
		if row.Value.Parent != 0 && row.Key.Ifindex != 0 {
			onParents = append(onParents, row)
		}
	}
	if len(onParents) == 0 {
		return Unchanged, nil
	}
	links, err := d.objects.LockLinks(ctx)
	if err != nil {
		return Unchanged, err
	}
	defer links.Unlock()
	state, err := d.objects.NodeState.IDs()
	if err != nil {
		return Unchanged, err
	}
	err = withNamespaces(func(by map[uint64]*netns.Namespace) error {
		for _, row := range onParents {
			did, err := d.guardParent(ctx, row, by[row.Key.Netns], by[state.Host])
			if err != nil {
				return err
			}
			change = max(change, did)
		}
		return nil
	})
	return change, err
}

// guardParent does so for the device of a pod.
func (d *Datapath) guardParent(ctx context.Context, row device.SenderRow, pod, host *netns.Namespace) (Change, error) {
	if pod == nil || host == nil {
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
	missing, err := t.MissingOuter(d.objects)
	if err != nil || len(missing) == 0 {
		return Unchanged, err
	}
	err = d.objects.WithLock(ctx, func() error {
		_, err := device.PutSender(d.objects, row) // with the row of its network namespace
		return err
	})
	return Updated, errors.Join(err, t.AttachOuter(d.objects))
}
