// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"mustang/internal/datapath/device"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
)

// sender returns the row of the device: what the source guard lets pass besides packets from the addresses in endpoints. alone
// is whether the pod is no endpoint.
func (t target) sender(id uint32, alone bool) (objects.SenderKey, objects.Sender) {
	row := objects.Sender{Endpoint: id, Netns: t.Netns}
	copy(row.Mac[:], t.PodMAC)
	if t.LinkLocal.IsValid() {
		row.LinkLocal = rows.EncodeAddr(t.LinkLocal)
	}
	allowed := t.Allowed
	if t.Point.OnPod() {
		row.Parent = uint32(t.Parent)
	}
	if len(t.Addresses) > 0 && !alone {
		row.Pod = rows.EncodeAddr(t.Addresses[0])
	}
	if alone {
		row.Flags |= objects.SenderAlone
		row.Addresses = uint16(len(t.Addresses))
		for _, a := range t.Addresses {
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
	if t.Unguarded {
		row.Flags |= objects.SenderUnguarded
	}
	if t.Switched {
		row.Flags |= objects.SenderSwitched
	}
	if t.DHCP {
		row.Flags |= objects.SenderDHCP
	}
	return device.SenderKey(!t.Point.OnPod(), t.Netns, t.IfIndex), row
}

// putSender stores the row of the device. The caller has the lock of the rows.
func (e Endpoints) putSender(t target, id uint32) (changed bool, err error) {
	key, want := t.sender(id, false)
	have, _, err := e.o.Senders.Get(key)
	if err == nil && have != want {
		changed, err = true, e.o.Senders.Put(key, want)
	}
	if err != nil {
		return changed, err
	}
	return changed, noteNamespace(e.o, key)
}

// deleteSender deletes the row of an endpoint's device: from then on the programs there let nothing pass. The caller has the
// lock of the rows.
func (e Endpoints) deleteSender(each Endpoint) error {
	key := device.SenderKey(each.Host, each.netns, each.IfIndex)
	row, ok, err := e.o.Senders.Get(key)
	if err != nil || !ok || row.Endpoint != each.ID {
		return err
	}
	return errors.Join(e.o.Senders.Delete(key), noteNamespace(e.o, key))
}

// strangers returns the keys of senders that were endpoints.
func strangers(o *objects.Objects, ids map[uint64]bool) (keys []objects.SenderKey, err error) {
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

// deviatesAsSender describes how the row of the device differs from what it should be.
func (e Endpoints) deviatesAsSender(t target, id uint32) ([]string, error) {
	key, want := t.sender(id, false)
	have, ok, err := e.o.Senders.Get(key)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return []string{"the source guard does not know its device"}, nil
	case have != want:
		return []string{fmt.Sprintf("the source guard has flags %d and %d prefixes, want %d and %d, or other addresses",
			have.Flags, have.Prefixes, want.Flags, want.Prefixes)}, nil
	}
	return t.outerDeviations(e.o)
}
