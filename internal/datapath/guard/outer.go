// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"slices"

	"mustang/internal/datapath/device"
	"mustang/internal/datapath/objects"
)

// loopback is the index of the loopback device in each network namespace: LOOPBACK_IFINDEX, <net/flow.h>.
const loopback = 1

// Outer returns the links of the source guard at devices of the host, by which packets go that the pod sends past the programs
// on its own device.
func Outer(d *device.Device) []objects.Link {
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
	return k.Hook.Point == objects.AttachParent || k.Hook.Point == objects.AttachEntrance || k.Hook.Point == objects.AttachExit
}

// Attach attaches the programs at devices of the host that are missing. What comes by an entrance is vouched for once its
// program is there.
func Attach(o *objects.Objects, d *device.Device) error {
	for _, k := range Outer(d) {
		if on, err := o.Attached(k); err != nil || on != uint64(k.IfIndex) {
			if err := d.HostNS.Do(func() error { return errors.Join(detach(o, k), o.Attach(k, k.IfIndex)) }); err != nil {
				return err
			}
		}
		if !isEntrance(k) {
			continue
		}
		if err := vouch(o, k); err != nil {
			return err
		}
	}
	return nil
}

// isEntrance reports whether what comes by the device of a link counts as checked. Pods of ipvlan in layer 3 come by the loopback device.
func isEntrance(k objects.Link) bool {
	return k.Hook.Point == objects.AttachEntrance || k.Hook.Point == objects.AttachParent && k.IfIndex == loopback
}

// vouch has what comes by the device of a link count as checked.
func vouch(o *objects.Objects, k objects.Link) error {
	return o.GuardedDevices.Put(uint32(k.IfIndex), uint32(k.ID))
}

// detach detaches one of these programs.
func detach(o *objects.Objects, k objects.Link) error {
	last, err := isLast(o, k)
	if err == nil && last && isEntrance(k) {
		err = o.GuardedDevices.Delete(uint32(k.IfIndex))
	}
	if err != nil {
		return err
	}
	return o.Detach(k)
}

// isLast reports whether no pods on another parent come by the device of a link: all of ipvlan share the loopback device.
func isLast(o *objects.Objects, k objects.Link) (bool, error) {
	links, err := o.Links()
	return !slices.ContainsFunc(links, func(other objects.Link) bool {
		return other.IfIndex == k.IfIndex && other.ID != k.ID && isEntrance(other)
	}), err
}

// isVouchedFor reports whether what comes by a device of the host counts as checked.
func isVouchedFor(o *objects.Objects, index int) (found bool, err error) {
	_, found, err = o.GuardedDevices.Get(uint32(index))
	return found, err
}

// Missing describes what is missing of the source guard at devices of the host.
func Missing(o *objects.Objects, d *device.Device) (missing []string, err error) {
	for _, k := range Outer(d) {
		if on, err := o.Attached(k); err != nil || on != uint64(k.IfIndex) {
			missing = append(missing, fmt.Sprintf("program %s is not attached to interface %d of the host", k.Hook.Program, k.IfIndex))
		}
		if !isEntrance(k) {
			continue
		}
		if ok, err := isVouchedFor(o, k.IfIndex); err != nil {
			return nil, err
		} else if !ok {
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

// DetachIdle detaches the programs at devices of the host that no pod is on any more.
func DetachIdle(o *objects.Objects) error {
	idle, err := Idle(o)
	for _, k := range idle {
		err = errors.Join(err, detach(o, k))
	}
	return err
}
