// SPDX-License-Identifier: Apache-2.0

// Package guard keeps the source guard of pods: the rows that say what may leave a pod's device, and the programs that pods
// which are no endpoints have, and those at devices of the host that pods share. Callers have the lock of what they change.
package guard

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"mustang/internal/datapath/device"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
)

// Row returns the row of a device: what the source guard lets pass besides packets from the addresses in endpoints. alone
// is whether the pod is no endpoint.
func Row(d *device.Device, id uint32, alone bool) (objects.SenderKey, objects.Sender) {
	row := objects.Sender{Endpoint: id, Netns: d.Netns, Peer: uint32(d.Peer)}
	copy(row.Mac[:], d.PodMAC)
	if d.LinkLocal.IsValid() {
		row.LinkLocal = rows.EncodeAddr(d.LinkLocal)
	}
	allowed := d.Allowed
	if d.Point.OnPod() {
		row.Parent = uint32(d.Parent)
	}
	if len(d.Addresses) > 0 && !alone {
		row.Pod = rows.EncodeAddr(d.Addresses[0])
	}
	if alone {
		row.Flags |= objects.SenderAlone
		row.Addresses = uint16(len(d.Addresses))
		for _, a := range d.Addresses {
			allowed = append(slices.Clip(allowed), netip.PrefixFrom(a, a.BitLen()))
		}
	}
	row.Prefixes = uint16(len(allowed))
	for i, p := range allowed {
		row.Prefix[i].Addr, row.Prefix[i].Mask = rows.EncodeAddr(p.Addr()), rows.EncodeMask(p)
		if p.Addr().Is6() && !p.IsSingleIP() {
			row.Flags |= objects.SenderRouter
		}
	}
	if d.Unguarded {
		row.Flags |= objects.SenderUnguarded
	}
	if d.Switched {
		row.Flags |= objects.SenderSwitched
	}
	if d.DHCP {
		row.Flags |= objects.SenderDHCP
	}
	return device.SenderKey(!d.Point.OnPod(), d.Netns, d.IfIndex), row
}

// Put stores the row that Row returns.
func Put(o *objects.Objects, d *device.Device, id uint32, alone bool) (changed bool, err error) {
	key, want := Row(d, id, alone)
	return Store(o, key, want)
}

// Store stores the row of a device, and what programs on other devices are to know of its network namespace.
func Store(o *objects.Objects, key objects.SenderKey, want objects.Sender) (changed bool, err error) {
	keys := []objects.SenderKey{key}
	if want.Peer != 0 {
		keys = append(keys, peerOf(want))
	}
	for _, k := range keys {
		have, _, err := o.Senders.Get(k)
		if err == nil && have != want {
			changed, err = true, o.Senders.Put(k, want)
		}
		if err != nil {
			return changed, err
		}
	}
	return changed, noteNamespace(o, key)
}

// peerOf is the key of a second row, of the pod's device of a netkit: packets are there when they enter the pod.
func peerOf(s objects.Sender) objects.SenderKey {
	return objects.SenderKey{Netns: s.Netns, Ifindex: s.Peer}
}

// Delete deletes the row of a device: from then on the programs there let nothing pass.
func Delete(o *objects.Objects, key objects.SenderKey) error {
	row, ok, err := o.Senders.Get(key)
	if ok && row.Peer != 0 {
		err = errors.Join(err, o.Senders.Delete(peerOf(row)))
	}
	return errors.Join(err, o.Senders.Delete(key), noteNamespace(o, key))
}

// noteNamespace updates the row of the network namespace of a sender that was stored or deleted. A namespace with several devices is guarded if all are.
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
		case row.Key.Netns != key.Netns || row.Key.Ifindex == 0 || row.Value.Peer != 0:
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

// Strangers returns the keys of the rows of endpoints that are not among the ids.
func Strangers(o *objects.Objects, ids map[uint64]bool) (keys []objects.SenderKey, err error) {
	for row, err := range o.Senders.All() {
		if err != nil {
			return nil, err
		}
		if row.Value.Flags&objects.SenderAlone == 0 && !ids[uint64(row.Value.Endpoint)] {
			keys = append(keys, row.Key)
		}
	}
	return keys, nil
}

// Deviations describes how the row of a device differs from what it should be, and what is missing at devices of the host.
func Deviations(o *objects.Objects, d *device.Device, id uint32, alone bool) ([]string, error) {
	key, want := Row(d, id, alone)
	have, ok, err := o.Senders.Get(key)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return []string{"the source guard does not know its device"}, nil
	case have != want:
		return []string{fmt.Sprintf("the source guard has flags %d and %d prefixes, want %d and %d, or other addresses",
			have.Flags, have.Prefixes, want.Flags, want.Prefixes)}, nil
	}
	if want.Peer != 0 {
		if inPod, _, err := o.Senders.Get(peerOf(want)); err != nil {
			return nil, err
		} else if inPod != want {
			return []string{"the source guard does not know its device in the pod"}, nil
		}
	}
	return Missing(o, d)
}
