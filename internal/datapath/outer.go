// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"slices"

	"mustang/internal/datapath/objects"
)

// outer returns the links of the source guard at devices of the host, by which packets go that the pod sends past the programs on
// its own device.
func (t target) outer() []objects.Link {
	if t.Parent == 0 {
		return nil
	}
	link := func(at objects.AttachPoint, index int) objects.Link {
		return objects.Link{Hook: at.Hooks()[0], ID: uint64(t.Parent), IfIndex: index}
	}
	links := []objects.Link{link(objects.AttachParent, t.Parent)}
	for _, index := range t.Entrances {
		links = append(links, link(objects.AttachEntrance, index))
	}
	return links
}

// attachOuter attaches the programs at devices of the host that are missing. The caller has the lock of the links.
func (t target) attachOuter(o *objects.Objects) error {
	for _, k := range t.outer() {
		if on, err := o.Attached(k); err == nil && on == uint64(k.IfIndex) {
			continue
		}
		if err := t.HostNS.Do(func() error { return errors.Join(o.Detach(k), o.Attach(k, k.IfIndex)) }); err != nil {
			return err
		}
	}
	return nil
}

// outerDeviations describes what is missing of the source guard at devices of the host.
func (t target) outerDeviations(o *objects.Objects) (missing []string, err error) {
	for _, k := range t.outer() {
		if on, err := o.Attached(k); err != nil || on != uint64(k.IfIndex) {
			missing = append(missing, fmt.Sprintf("program %s is not attached to interface %d of the host", k.Hook.Program, k.IfIndex))
		}
	}
	if t.Point.OnPod() && !t.Switched {
		if _, ok, err := o.Senders.Get(objects.SenderKey{Netns: t.Netns}); err != nil {
			return nil, err
		} else if !ok {
			missing = append(missing, "the source guard does not know its network namespace")
		}
	}
	return missing, nil
}

// noteNamespace stores what programs on other devices are to know of the network namespace of a sender that was put or deleted.
// A namespace with several devices is guarded if all are. The caller has the lock of the rows.
func noteNamespace(o *objects.Objects, sender objects.SenderKey) error {
	key := objects.SenderKey{Netns: sender.Netns}
	if key.Netns == 0 {
		return nil
	}
	var want objects.Sender
	found := false
	for row, err := range o.Senders.All() {
		switch {
		case err != nil:
			return err
		case row.Key.Netns != key.Netns || row.Key.Ifindex == 0:
		case !found || row.Value.Flags&objects.SenderUnguarded != 0:
			want, found = row.Value, true
		}
	}
	have, ok, err := o.Senders.Get(key)
	switch {
	case err != nil || ok == found && have == want:
		return err
	case !found:
		return o.Senders.Delete(key)
	}
	return o.Senders.Put(key, want)
}

// idleOuter returns the links at devices of the host that no pod is on any more.
func idleOuter(o *objects.Objects) (idle []objects.Link, err error) {
	links, err := o.Links()
	if err != nil {
		return nil, err
	}
	links = slices.DeleteFunc(links, func(k objects.Link) bool {
		return k.Hook.Point != objects.AttachParent && k.Hook.Point != objects.AttachEntrance
	})
	if len(links) == 0 {
		return nil, nil
	}
	if err := o.OpenTables(); err != nil {
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

// detachIdle detaches the programs at devices of the host that no pod is on any more. The caller has the lock of the links.
func detachIdle(o *objects.Objects) error {
	idle, err := idleOuter(o)
	for _, k := range idle {
		err = errors.Join(err, o.Detach(k))
	}
	return err
}
