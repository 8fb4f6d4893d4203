// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
)

// senderRow is a row of source_guard: sources that may pass at a device, in addition to the addresses in endpoints.
type senderRow = objects.Row[objects.SenderKey, objects.Sender]

// maxPrefixes is the number of prefixes in a row, in addition to as many addresses of a pod that is not an endpoint.
const maxPrefixes = 16

func senderKey(host bool, netns uint64, ifindex int) objects.SenderKey {
	key := objects.SenderKey{Ifindex: uint32(ifindex)}
	if !host {
		key.Netns = netns
	}
	return key
}

// senderRow returns the row of the device. alone is true if the pod is not an endpoint.
func (d *podDevice) senderRow(id uint32, alone bool) senderRow {
	row := objects.Sender{Endpoint: id, Netns: d.Netns, Peer: uint32(d.Peer)}
	copy(row.Mac[:], d.PodMAC)
	if d.LinkLocal.IsValid() {
		row.LinkLocal = rows.EncodeAddr(d.LinkLocal)
	}
	if d.Point.OnPod() {
		row.Parent = uint32(d.Parent)
	}
	allowed := slices.Clone(d.Allowed)
	if alone {
		row.Addresses = uint16(len(d.Addresses))
		for _, a := range d.Addresses {
			allowed = append(allowed, netip.PrefixFrom(a, a.BitLen()))
		}
	} else if len(d.Addresses) > 0 {
		row.Pod = rows.EncodeAddr(d.Addresses[0])
	}
	row.Prefixes = uint16(len(allowed))
	router := false
	for i, p := range allowed {
		row.Prefix[i].Addr, row.Prefix[i].Mask = rows.EncodeAddr(p.Addr()), rows.EncodeMask(p)
		router = router || p.Addr().Is6() && !p.IsSingleIP()
	}
	for flag, set := range map[uint16]bool{
		objects.SenderAlone: alone, objects.SenderRouter: router, objects.SenderUnguarded: d.Unguarded,
		objects.SenderSwitched: d.Switched, objects.SenderDHCP: d.DHCP,
	} {
		if set {
			row.Flags |= flag
		}
	}
	return senderRow{Key: senderKey(!d.Point.OnPod(), d.Netns, d.IfIndex), Value: row}
}

// senderKeys returns the keys of a device's row. A netkit has a second one, of the pod's device: packets are there when
// they enter the pod.
func senderKeys(row senderRow) []objects.SenderKey {
	if row.Value.Peer == 0 {
		return []objects.SenderKey{row.Key}
	}
	return []objects.SenderKey{row.Key, {Netns: row.Value.Netns, Ifindex: row.Value.Peer}}
}

// putSender stores the row of a device, and the row of its network namespace for programs on other devices. The
// caller has the lock of the rows, and so has the caller of deleteSender.
func putSender(o *objects.Objects, row senderRow) (changed bool, err error) {
	for _, k := range senderKeys(row) {
		have, _, err := o.Senders.Get(k)
		if err == nil && have != row.Value {
			changed, err = true, o.Senders.Put(k, row.Value)
		}
		if err != nil {
			return changed, err
		}
	}
	return changed, noteNamespace(o, row.Key.Netns)
}

// deleteSender deletes the row of a device: from then on the programs there let nothing pass.
func deleteSender(o *objects.Objects, key objects.SenderKey) error {
	row, _, err := o.Senders.Get(key)
	for _, k := range slices.Backward(senderKeys(senderRow{Key: key, Value: row})) {
		err = errors.Join(err, o.Senders.Delete(k))
	}
	return errors.Join(err, noteNamespace(o, key.Netns))
}

// noteNamespace updates the row of a network namespace after a sender's row was stored or deleted. A namespace with
// several devices is guarded if all are.
func noteNamespace(o *objects.Objects, netns uint64) error {
	if netns == 0 {
		return nil
	}
	var want objects.Sender
	found := false
	for row, err := range o.Senders.All() {
		switch {
		case err != nil:
			return err
		case row.Key.Netns != netns || row.Key.Ifindex == 0 || row.Value.Peer != 0:
		case !found || row.Value.Flags&objects.SenderUnguarded != 0:
			want, found = row.Value, true
		}
	}
	key := objects.SenderKey{Netns: netns}
	have, ok, err := o.Senders.Get(key)
	switch {
	case err != nil || ok == found && have == want:
		return err
	case !found:
		return o.Senders.Delete(key)
	}
	return o.Senders.Put(key, want)
}

// guardDeviations describes differences of a device's row from the desired one, and missing guards at host devices.
func (d *podDevice) guardDeviations(o *objects.Objects, id uint32, alone bool) ([]string, error) {
	row := d.senderRow(id, alone)
	for i, key := range senderKeys(row) {
		have, ok, err := o.Senders.Get(key)
		switch want := row.Value; {
		case err != nil:
			return nil, err
		case i > 0 && have != want:
			return []string{"map source_guard lacks its device in the pod"}, nil
		case !ok:
			return []string{"map source_guard lacks its device"}, nil
		case have != want:
			return []string{fmt.Sprintf("the source guard has flags %d and %d prefixes, want %d and %d, or other addresses",
				have.Flags, have.Prefixes, want.Flags, want.Prefixes)}, nil
		}
	}
	return d.missingOuter(o)
}

func (d *podDevice) missingOuter(o *objects.Objects) (missing []string, err error) {
	for _, k := range d.outer() {
		if on, err := o.Attached(k); err != nil || on != uint64(k.IfIndex) {
			what := fmt.Sprintf("program %s is not attached to interface %d of the host", k.Hook.Program, k.IfIndex)
			missing = append(missing, what)
		}
		if _, ok, err := o.Devices.Get(guardedKey(k.IfIndex)); err != nil {
			return nil, err
		} else if !ok && isEntrance(k) {
			missing = append(missing, fmt.Sprintf("map devices lacks interface %d of the host", k.IfIndex))
		}
	}
	if d.Point.OnPod() && !d.Switched {
		if _, ok, err := o.Senders.Get(objects.SenderKey{Netns: d.Netns}); err != nil {
			return nil, err
		} else if !ok {
			missing = append(missing, "map source_guard lacks its network namespace")
		}
	}
	return missing, nil
}
