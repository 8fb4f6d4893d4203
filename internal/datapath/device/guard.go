// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/netns"
	"mustang/internal/qdisc"
	"mustang/internal/rtnl"
)

// SenderRow is a row of source_guard: what the source guard lets pass at a device, besides packets from the addresses
// in endpoints.
type SenderRow = objects.Row[objects.SenderKey, objects.Sender]

// SenderKey returns the key of the device by which an endpoint's packets leave it.
func SenderKey(host bool, netns uint64, ifindex int) objects.SenderKey {
	key := objects.SenderKey{Ifindex: uint32(ifindex)}
	if !host {
		key.Netns = netns
	}
	return key
}

// SenderRow returns the row of the device. alone is whether the pod is no endpoint.
func (d *Device) SenderRow(id uint32, alone bool) SenderRow {
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
		row.Addresses = uint16(len(d.Addresses))
		for _, a := range d.Addresses {
			allowed = append(slices.Clip(allowed), netip.PrefixFrom(a, a.BitLen()))
		}
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
	return SenderRow{Key: SenderKey(!d.Point.OnPod(), d.Netns, d.IfIndex), Value: row}
}

// PutSender stores the row of a device, and what programs on other devices are to know of its network namespace. The
// caller has the lock of the rows, as that of DeleteSender has.
func PutSender(o *objects.Objects, row SenderRow) (changed bool, err error) {
	keys := []objects.SenderKey{row.Key}
	if row.Value.Peer != 0 {
		keys = append(keys, peerOf(row.Value))
	}
	for _, k := range keys {
		have, _, err := o.Senders.Get(k)
		if err == nil && have != row.Value {
			changed, err = true, o.Senders.Put(k, row.Value)
		}
		if err != nil {
			return changed, err
		}
	}
	return changed, noteNamespace(o, row.Key)
}

// peerOf is the key of a second row, of the pod's device of a netkit: packets are there when they enter the pod.
func peerOf(s objects.Sender) objects.SenderKey {
	return objects.SenderKey{Netns: s.Netns, Ifindex: s.Peer}
}

// DeleteSender deletes the row of a device: from then on the programs there let nothing pass.
func DeleteSender(o *objects.Objects, key objects.SenderKey) error {
	row, ok, err := o.Senders.Get(key)
	if ok && row.Peer != 0 {
		err = errors.Join(err, o.Senders.Delete(peerOf(row)))
	}
	return errors.Join(err, o.Senders.Delete(key), noteNamespace(o, key))
}

// noteNamespace updates the row of the network namespace of a sender that was stored or deleted. A namespace with
// several devices is guarded if all are.
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

// GuardDeviations describes how the row of a device differs from what it should be, and what is missing at devices of
// the host.
func (d *Device) GuardDeviations(o *objects.Objects, id uint32, alone bool) ([]string, error) {
	row := d.SenderRow(id, alone)
	want := row.Value
	have, ok, err := o.Senders.Get(row.Key)
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
	return d.MissingOuter(o)
}

// The program of a pod that is no endpoint is a tc filter where it is at a device of the host, which nobody in the pod
// can change: attaching one by tcx, and deleting a device that has one, waits for an RCU grace period of about 12 ms
// with the lock of all devices (docs/adr/0026). It is nowhere pinned. The row of the device tells where it is, and
// comes first.

// isFilter reports whether the program at a place is a tc filter, if the kernel has them.
func isFilter(p objects.AttachPoint) bool { return p == objects.AttachHost || p == objects.AttachTun }

func setFilter(o *objects.Objects, h objects.Hook, host *netns.Namespace, index int) error {
	p, err := o.Program(h)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	return qdisc.SetIngress(host, index, p.FD())
}

// hasFilter reports whether a device has a filter. If that is not known it may have one.
func hasFilter(host *netns.Namespace, index int) bool {
	program, err := qdisc.Ingress(host, index)
	return program != 0 || err != nil
}

// aloneLink is the link of the program on the device of a pod that is no endpoint.
func (d *Device) aloneLink(id uint32) objects.Link {
	return objects.Link{Hook: d.Point.Guard().Hooks()[0], ID: uint64(id)}
}

// AttachAlone attaches the program of a pod that is no endpoint, in place of an earlier one.
func (d *Device) AttachAlone(o *objects.Objects, id uint32) error {
	link := d.aloneLink(id)
	if isFilter(d.Point) {
		if err := setFilter(o, link.Hook, d.On, d.IfIndex); !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	return d.On.Do(func() error { return errors.Join(o.Detach(link), o.Attach(link, d.IfIndex)) })
}

// IsAlone reports whether a device has the program of a pod that is no endpoint.
func (d *Device) IsAlone(o *objects.Objects, id uint32) bool {
	missing := o.Missing([]objects.Link{d.aloneLink(id)}, uint64(d.IfIndex))
	return len(missing) == 0 || isFilter(d.Point) && hasFilter(d.On, d.IfIndex)
}

// Supersede ends the filter of a pod that was no endpoint, once the programs of its endpoint are on the device.
func (d *Device) Supersede() error {
	if !isFilter(d.Point) {
		return nil
	}
	return qdisc.DeleteIngress(d.On, d.IfIndex)
}

// Alone returns the rows of pods that are no endpoints.
func Alone(o *objects.Objects) (all []SenderRow, err error) {
	for row, err := range o.Senders.All() {
		if err != nil {
			return nil, err
		}
		if row.Value.Flags&objects.SenderAlone != 0 {
			all = append(all, row)
		}
	}
	return all, nil
}

// IsAlive reports whether a device still has the program of a pod that is no endpoint. The host is nil if it is gone.
func IsAlive(o *objects.Objects, host *netns.Namespace, row SenderRow) bool {
	return row.Key.Netns == 0 && host != nil && hasFilter(host, int(row.Key.Ifindex)) ||
		slices.ContainsFunc(objects.GuardHooks(), func(h objects.Hook) bool {
			on, err := o.Attached(objects.Link{Hook: h, ID: uint64(row.Value.Endpoint)})
			return err == nil && on != 0
		})
}

// RemoveAlone ends the guard of pods that are no endpoints. The host is nil if it is gone. It deletes their rows and
// then detaches their programs: until then these let nothing pass. Filters go before their rows, which tell where they
// are. The caller has the lock of the links.
func RemoveAlone(ctx context.Context, o *objects.Objects, host *netns.Namespace, gone []SenderRow) error {
	if len(gone) == 0 {
		return nil
	}
	for _, row := range gone {
		if row.Key.Netns == 0 && host != nil {
			if err := qdisc.DeleteIngress(host, int(row.Key.Ifindex)); err != nil {
				return err
			}
		}
	}
	err := o.WithLock(ctx, func() (err error) {
		for _, row := range gone {
			err = errors.Join(err, DeleteSender(o, row.Key))
		}
		return errors.Join(err, o.NodeState.Invalidate())
	})
	for _, row := range gone {
		for _, h := range objects.GuardHooks() {
			err = errors.Join(err, o.Detach(objects.Link{Hook: h, ID: uint64(row.Value.Endpoint)}))
		}
	}
	return errors.Join(err, DetachIdle(o))
}

// ReplaceFilters replaces filters of another build by this build's, each in one step.
func ReplaceFilters(o *objects.Objects, host *netns.Namespace) error {
	all, err := Alone(o)
	for _, row := range all {
		index := int(row.Key.Ifindex)
		if row.Key.Netns != 0 || !hasFilter(host, index) {
			continue
		}
		d, deviceErr := rtnl.In(host).DeviceByIndex(index)
		point := objects.AttachHost
		if len(d.MAC) == 0 {
			point = objects.AttachTun
		}
		if deviceErr == nil {
			deviceErr = setFilter(o, point.Guard().Hooks()[0], host, index)
		}
		if !errors.Is(deviceErr, fs.ErrNotExist) {
			err = errors.Join(err, deviceErr)
		}
	}
	return err
}
