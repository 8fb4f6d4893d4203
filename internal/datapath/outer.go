// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// loopback is the index of the loopback device in each network namespace: LOOPBACK_IFINDEX, <net/flow.h>.
const loopback = 1

// outer returns the links of the source guard at devices of the host. Packets that the pod sends past the programs on
// its own device cross these devices.
func (d *podDevice) outer() (links []objects.Link) {
	if d.Parent == 0 {
		return nil
	}
	add := func(at objects.AttachPoint, index int) {
		links = append(links, objects.Link{ID: uint64(d.Parent), IfIndex: index}.At(at.Hooks())...)
	}
	add(objects.AttachParent, d.Parent)
	if d.Loopback { // at egress: packets at ingress have lost their sockets
		add(objects.AttachParent, loopback)
	}
	for _, index := range d.Entrances {
		add(objects.AttachEntrance, index)
		if index != d.Parent { // that leads to the network
			add(objects.AttachExit, index)
		}
	}
	return links
}

func guardedKey(index int) uint64 { return uint64(index) | objects.DeviceGuarded }

func isOuter(k objects.Link) bool {
	outer := []objects.AttachPoint{objects.AttachParent, objects.AttachEntrance, objects.AttachExit}
	return slices.Contains(outer, k.Hook.Point)
}

// isEntrance reports whether packets from the device of a link count as checked. Packets of pods of ipvlan in layer 3
// arrive from the loopback device.
func isEntrance(k objects.Link) bool {
	return k.Hook.Point == objects.AttachEntrance || k.Hook.Point == objects.AttachParent && k.IfIndex == loopback
}

// attachOuter attaches the programs at devices of the host that are missing. A packet that comes in by an entrance
// counts as checked once its program is there. The caller has the lock of the links.
func (d *podDevice) attachOuter(o *objects.Objects) error {
	for _, k := range d.outer() {
		if on, err := o.Attached(k); err != nil || on != uint64(k.IfIndex) {
			if err := d.HostNS.Do(func() error { return errors.Join(detachOuter(o, k), o.Attach(k, k.IfIndex)) }); err != nil {
				return err
			}
		}
		if isEntrance(k) {
			if err := o.Devices.Put(guardedKey(k.IfIndex), objects.Device{Parent: uint32(k.ID)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// detachOuter detaches one of these programs. Pods on another parent may come by its device: all ipvlan share loopback.
func detachOuter(o *objects.Objects, k objects.Link) error {
	links, err := o.Links()
	if err == nil && isEntrance(k) && !slices.ContainsFunc(links, func(other objects.Link) bool {
		return other.IfIndex == k.IfIndex && other.ID != k.ID && isEntrance(other)
	}) {
		err = o.Devices.Delete(guardedKey(k.IfIndex))
	}
	if err != nil {
		return err
	}
	return o.Detach(k)
}

func idleOuter(o *objects.Objects) (idle []objects.Link, err error) {
	links, err := o.Links()
	links = slices.DeleteFunc(links, func(k objects.Link) bool { return !isOuter(k) })
	if err != nil || len(links) == 0 {
		return nil, err
	}
	parents := make(map[uint64]bool)
	for row, err := range o.Senders.All() {
		if err != nil {
			return nil, err
		}
		parents[uint64(row.Value.Parent)] = true
	}
	return slices.DeleteFunc(links, func(k objects.Link) bool { return parents[k.ID] }), nil
}

// detachIdle detaches the programs at devices of the host without pods. The caller has the lock of the links.
func detachIdle(o *objects.Objects) error {
	idle, err := idleOuter(o)
	for _, k := range idle {
		err = errors.Join(err, detachOuter(o, k))
	}
	return err
}

// Upgrade replaces programs of another build with this build's, as Open does, then guards devices as GuardParents does.
func (d *Datapath) Upgrade(ctx context.Context) (Change, error) {
	if err := d.objects.Renew(ctx, replaceFilters); err != nil {
		return Unchanged, err
	}
	return d.GuardParents(ctx)
}

// GuardParents attaches the source guard to devices of the host that were made after the pods on the same parent.
// Without the guard, once policies are in force, pods drop the host's packets from such devices, like packets that a
// pod sends in the node's name. Pods that are not found are left out. Without pods on a parent it does nothing.
func (d *Datapath) GuardParents(ctx context.Context) (change Change, err error) {
	var onParents []senderRow
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
	err = d.objects.WithLinks(ctx, func() error {
		host, err := d.Host()
		if err != nil {
			return err
		}
		return withNamespaces(func(by map[uint64]*netns.Namespace) error {
			for _, row := range onParents {
				pod, node := by[row.Key.Netns], by[host]
				if pod == nil || node == nil {
					continue
				}
				did, err := d.guardParent(ctx, row, pod, node)
				if err != nil {
					return err
				}
				change = max(change, did)
			}
			return nil
		})
	})
	return change, err
}

func (d *Datapath) guardParent(ctx context.Context, row senderRow, pod, host *netns.Namespace) (Change, error) {
	name, err := rtnl.In(pod).OnParentIn(host, int(row.Key.Ifindex))
	if err != nil || name == "" {
		return Unchanged, err
	}
	t, err := findTarget(EndpointSpec{Namespace: pod, IfName: name, Host: host})
	if err != nil {
		return Unchanged, err
	}
	defer t.Close()
	missing, err := t.missingOuter(d.objects)
	if err != nil || len(missing) == 0 {
		return Unchanged, err
	}
	err = d.objects.WithLock(ctx, func() error {
		_, err := putSender(d.objects, row) // with the row of its network namespace
		return err
	})
	return Updated, errors.Join(err, t.attachOuter(d.objects))
}
