// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"slices"

	"mustang/internal/datapath/objects"
)

// loopback is the index of the loopback device in each network namespace: LOOPBACK_IFINDEX, <net/flow.h>.
const loopback = 1

// Outer returns the links of the source guard at devices of the host, by which packets go that the pod sends past the
// programs on its own device.
func (d *Device) Outer() []objects.Link {
	if d.Parent == 0 {
		return nil
	}
	link := func(at objects.AttachPoint, index int) objects.Link {
		return objects.Link{Hook: at.Hooks()[0], ID: uint64(d.Parent), IfIndex: index}
	}
	links := []objects.Link{link(objects.AttachParent, d.Parent)}
	if d.Loopback { // where packets leave by it: those that enter have forgotten their sockets
		links = append(links, link(objects.AttachParent, loopback))
	}
	for _, index := range d.Entrances {
		links = append(links, link(objects.AttachEntrance, index))
		if index != d.Parent { // that leads to the network
			links = append(links, link(objects.AttachExit, index))
		}
	}
	return links
}

// IsOuter reports whether a link is one that Outer returns.
func IsOuter(k objects.Link) bool {
	outer := []objects.AttachPoint{objects.AttachParent, objects.AttachEntrance, objects.AttachExit}
	return slices.Contains(outer, k.Hook.Point)
}

// isEntrance reports whether what comes by the device of a link counts as checked. Pods of ipvlan in layer 3 come by
// the loopback device.
func isEntrance(k objects.Link) bool {
	return k.Hook.Point == objects.AttachEntrance || k.Hook.Point == objects.AttachParent && k.IfIndex == loopback
}

// AttachOuter attaches the programs at devices of the host that are missing. What comes by an entrance counts as
// checked once its program is there. The caller has the lock of the links.
func (d *Device) AttachOuter(o *objects.Objects) error {
	for _, k := range d.Outer() {
		if on, err := o.Attached(k); err != nil || on != uint64(k.IfIndex) {
			if err := d.HostNS.Do(func() error { return errors.Join(detachOuter(o, k), o.Attach(k, k.IfIndex)) }); err != nil {
				return err
			}
		}
		if isEntrance(k) {
			if err := o.GuardedDevices.Put(uint32(k.IfIndex), uint32(k.ID)); err != nil {
				return err
			}
		}
	}
	return nil
}

// detachOuter detaches one of these programs. Pods on another parent may come by its device: all of ipvlan share the
// loopback device.
func detachOuter(o *objects.Objects, k objects.Link) error {
	links, err := o.Links()
	if err == nil && isEntrance(k) && !slices.ContainsFunc(links, func(other objects.Link) bool {
		return other.IfIndex == k.IfIndex && other.ID != k.ID && isEntrance(other)
	}) {
		err = o.GuardedDevices.Delete(uint32(k.IfIndex))
	}
	if err != nil {
		return err
	}
	return o.Detach(k)
}

// MissingOuter describes what is missing of the source guard at devices of the host.
func (d *Device) MissingOuter(o *objects.Objects) (missing []string, err error) {
	for _, k := range d.Outer() {
		if on, err := o.Attached(k); err != nil || on != uint64(k.IfIndex) {
			what := fmt.Sprintf("program %s is not attached to interface %d of the host", k.Hook.Program, k.IfIndex)
			missing = append(missing, what)
		}
		if _, ok, err := o.GuardedDevices.Get(uint32(k.IfIndex)); err != nil {
			return nil, err
		} else if !ok && isEntrance(k) {
			missing = append(missing, fmt.Sprintf("the source guard does not know interface %d of the host", k.IfIndex))
		}
	}
	if d.Point.OnPod() && !d.Switched {
		if _, ok, err := o.Senders.Get(objects.SenderKey{Netns: d.Netns}); err != nil {
			return nil, err
		} else if !ok {
			missing = append(missing, "the source guard does not know its network namespace")
		}
	}
	return missing, nil
}

// Idle returns the links at devices of the host that no pod is on any more.
func Idle(o *objects.Objects) (idle []objects.Link, err error) {
	links, err := o.Links()
	if err != nil {
		return nil, err
	}
	links = slices.DeleteFunc(links, func(k objects.Link) bool { return !IsOuter(k) })
	if len(links) == 0 {
		return nil, nil
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

// DetachIdle detaches the programs at devices of the host that no pod is on any more. The caller has the lock of the
// links.
func DetachIdle(o *objects.Objects) error {
	idle, err := Idle(o)
	for _, k := range idle {
		err = errors.Join(err, detachOuter(o, k))
	}
	return err
}
