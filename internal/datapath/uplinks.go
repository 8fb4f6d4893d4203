// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// Uplinks are the devices of hosts through which clients outside reach services.
type Uplinks struct{ o *objects.Objects }

// Uplink is one such device.
type Uplink struct {
	Host    uint64 // the cookie of the network namespace that the device is in; it is not used again
	IfIndex int    // the device's index there
}

// FindUplink returns the uplink that a device is, or would be. Errors: a device that is missing matches os.ErrNotExist;
// a device without a MAC address is refused.
func FindUplink(ns *netns.Namespace, ifname string) (Uplink, error) {
	device, err := rtnl.In(ns).Device(ifname)
	if err != nil {
		return Uplink{}, err
	}
	if len(device.MAC) != 6 || device.Kind == "loopback" {
		return Uplink{}, fmt.Errorf("device %q in network namespace %q lacks a MAC address, which an uplink needs",
			ifname, ns.Name())
	}
	cookie, err := ns.Cookie()
	return Uplink{Host: cookie, IfIndex: device.Index}, err
}

func (u Uplink) links() []objects.Link {
	return objects.Link{ID: u.Host, IfIndex: u.IfIndex}.At(objects.AttachUplink.Hooks())
}

func indexesOf(attached map[Uplink][]objects.Link, host uint64) (indexes []int) {
	for u := range attached {
		if u.Host == host {
			indexes = append(indexes, u.IfIndex)
		}
	}
	return indexes
}

// Put serves clients whose packets arrive through the device: at frontends that are addresses of the host, and at all
// that are routed here. Packets to backends that are endpoints with a host's side, or sit on this very device, bypass
// the host's stack and netfilter. So do the replies, to the MAC address that the request came from. Packets to backends
// behind an uplink get the host's address there as source, and bypass the stack too. Packets to and from other backends
// pass the stack. All other packets pass unchanged. Programs that are attached already stay. Links of devices that are
// gone are deleted. Errors: as of FindUplink; *ConflictError if endpoints or uplinks here belong to another host.
func (s Uplinks) Put(ctx context.Context, ns *netns.Namespace, ifname string) (Change, error) {
	u, err := FindUplink(ns, ifname)
	if err != nil {
		return Unchanged, err
	}
	lock, err := s.o.LockLinks(ctx)
	if err != nil {
		return Unchanged, err
	}
	defer lock.Unlock()
	attached, err := s.attached(s.o.Detach)
	if err != nil {
		return Unchanged, err
	}
	if err := requireHost(ctx, s.o, u.Host, fmt.Sprintf("uplink %q in network namespace %q", ifname,
		ns.Name())); err != nil {
		return Unchanged, err
	}
	n, err := readHost(ns, append(indexesOf(attached, u.Host), u.IfIndex))
	if err != nil {
		return Unchanged, err
	}
	moved := false // a row is there before the programs of its uplink
	if err := s.o.WithLock(ctx, func() error { moved, err = n.write(s.o); return err }); err != nil {
		return Unchanged, err
	}
	missing := s.o.Missing(u.links(), uint64(u.IfIndex))
	slices.Reverse(missing) // replies first: no request is translated whose reply would not be
	if len(missing) == 0 && !moved {
		return Unchanged, nil
	}
	if err := ns.Do(func() error { return s.o.AttachAll(missing, u.IfIndex) }); err != nil {
		return Unchanged, fmt.Errorf("uplink %q in network namespace %q: %w", ifname, ns.Name(), err)
	}
	if len(attached[u]) > 0 {
		return Updated, nil
	}
	return Added, nil
}

// Delete reverses Put. Connections that arrived through the device are left to the host, which does not translate
// them. If the device is not an uplink, or is gone, the error is a *NotFoundError.
func (s Uplinks) Delete(ctx context.Context, u Uplink) error {
	return s.o.WithLinks(ctx, func() error {
		attached, err := s.attached(s.o.Detach)
		if err != nil {
			return err
		}
		if len(attached[u]) == 0 {
			return &NotFoundError{What: fmt.Sprintf("uplink %d of the host with cookie %d", u.IfIndex, u.Host)}
		}
		// The row first: as long as there are programs, the same call again completes this one.
		err = s.o.WithLock(ctx, func() error {
			return errors.Join(s.o.Devices.Delete(uint64(u.IfIndex)), s.o.NodeState.Invalidate())
		})
		if err != nil {
			return err
		}
		return s.o.DetachAll(u.links())
	})
}

// Source returns the addresses that the host has on an uplink, one of a family at most, from which it calls backends on
// other nodes. It takes no lock.
func (s Uplinks) Source(u Uplink) ([]netip.Addr, error) {
	row, _, err := s.o.Devices.Get(uint64(u.IfIndex))
	return sourceOf(row), err
}

// Sweep deletes the links of devices that are gone.
func (s Uplinks) Sweep(ctx context.Context) error {
	return s.o.WithLinks(ctx, func() error { return sweepRemains(ctx, s.o) })
}

// List returns the devices with a program of an uplink, sorted by host and index. It takes no lock and changes nothing.
func (s Uplinks) List(context.Context) ([]Uplink, error) {
	attached, err := s.attached(func(objects.Link) error { return nil })
	if err != nil {
		return nil, err
	}
	var all []Uplink
	for u := range attached {
		all = append(all, u)
	}
	slices.SortFunc(all, func(a, b Uplink) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.IfIndex, b.IfIndex))
	})
	return all, nil
}

// attached returns the links of uplinks, and calls gone with links of devices that no longer exist. If gone detaches
// them, the caller has the lock of the links.
func (s Uplinks) attached(gone func(objects.Link) error) (map[Uplink][]objects.Link, error) {
	links, err := s.o.Links()
	if err != nil {
		return nil, err
	}
	attached := make(map[Uplink][]objects.Link)
	for _, k := range links {
		if k.Hook.Point != objects.AttachUplink {
			continue
		}
		on, err := s.o.Attached(k)
		if errors.Is(err, os.ErrNotExist) {
			continue // it was detached meanwhile
		}
		if err != nil {
			return nil, err
		}
		if on == uint64(k.IfIndex) {
			u := Uplink{k.ID, k.IfIndex}
			attached[u] = append(attached[u], k)
			continue
		}
		if err := gone(k); err != nil {
			return nil, err
		}
	}
	return attached, nil
}

// Check returns a *DeviationError unless a device has the programs of an uplink. It takes no lock and changes nothing.
func (s Uplinks) Check(ns *netns.Namespace, ifname string) error {
	u, err := FindUplink(ns, ifname)
	if err != nil {
		return err
	}
	var found []string
	for _, k := range s.o.Missing(u.links(), uint64(u.IfIndex)) {
		found = append(found, fmt.Sprintf("program %s is not attached", k.Hook.Program))
	}
	return deviation(fmt.Sprintf("uplink %q", ifname), found...)
}

// Uplinks returns the handle of the uplinks.
func (d *Datapath) Uplinks() Uplinks { return Uplinks{d.objects} }
