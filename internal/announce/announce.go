// SPDX-License-Identifier: Apache-2.0

// Package announce answers ARP requests and neighbour solicitations for addresses of Services.
package announce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// A new address is probed this often. After each probe, answers are awaited for afterProbe.
const (
	probes     = 2
	afterProbe = 500 * time.Millisecond
)

// Announcer answers for addresses that no device has. Any goroutine may call its methods.
type Announcer struct {
	ns *netns.Namespace

	mu      sync.Mutex
	devices map[device]*responder
}

type device struct {
	index int
	name  string
	mac   [6]byte
	mark  mark
}

// New returns an announcer for the devices of a network namespace that answers for no address.
func New(ns *netns.Namespace) *Announcer {
	return &Announcer{ns: ns, devices: map[device]*responder{}}
}

// Watch notifies of changes of devices and routes after which Apply may have to do something, like rtnl.Conn.Watch.
func (a *Announcer) Watch(ctx context.Context) (<-chan struct{}, error) {
	return rtnl.In(a.ns).Watch(ctx)
}

// Apply makes the devices that run and have an address of the node answer for the owned addresses, and only for them.
// A device probes an address that is new there, for a second, and announces it. Announcers with the same text for the
// cluster ignore each other. For each address that is not announced, conflicts has the reason. It also names hosts that
// have used an announced address since the last call.
func (a *Announcer) Apply(cluster string, node, owned []netip.Addr) (conflicts map[netip.Addr]string, err error) {
	all, err := rtnl.In(a.ns).Devices()
	hops, hopsErr := rtnl.In(a.ns).NextHops()
	if err = errors.Join(err, hopsErr); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	conflicts, want := map[netip.Addr]string{}, map[device]bool{}
	owned = slices.DeleteFunc(slices.Clone(owned), func(addr netip.Addr) bool {
		why := needed(addr, all, hops)
		if why != "" {
			conflicts[addr] = why
		}
		return why != ""
	})
	for _, d := range all {
		has := slices.ContainsFunc(d.Addrs, func(p netip.Prefix) bool { return slices.Contains(node, p.Addr()) })
		if has && d.Running && len(d.MAC) == 6 && len(owned) > 0 {
			want[device{d.Index, d.Name, [6]byte(d.MAC), markOf(cluster)}] = true
		}
	}
	for d, r := range a.devices {
		if !want[d] {
			r.close()
			delete(a.devices, d)
		}
	}
	var fresh []*responder
	for d := range want {
		r := a.devices[d]
		if r == nil {
			var openErr error
			if r, openErr = open(a.ns, d); openErr != nil {
				err = errors.Join(err, fmt.Errorf("answer on device %q: %w", d.name, openErr))
				continue
			}
			a.devices[d] = r
		}
		added, setErr := r.set(owned)
		if err = errors.Join(err, setErr); added {
			fresh = append(fresh, r)
		}
	}
	for i := 0; i < probes && len(fresh) > 0; i++ {
		for _, r := range fresh {
			r.probe()
		}
		time.Sleep(afterProbe)
	}
	for _, r := range a.devices {
		r.settle(conflicts)
	}
	return conflicts, err
}

// needed returns why a host cannot answer for an address for others; empty if it can.
func needed(addr netip.Addr, all []rtnl.Device, hops []netip.Addr) string {
	if slices.Contains(hops, addr) {
		return "it is a next hop of the node's routes"
	}
	for _, d := range all {
		for _, p := range d.Addrs {
			switch subnet := p.Addr().BitLen()-p.Bits() > 1; {
			case p.Addr() == addr:
				return fmt.Sprintf("device %q has it", d.Name)
			case subnet && p.Masked().Addr() == addr:
				return fmt.Sprintf("it is the first address of %v", p.Masked())
			case subnet && addr.Is4() && p.Addr().Is4() && rtnl.LastAddress(p) == addr:
				return fmt.Sprintf("it is the broadcast address of %v", p.Masked())
			}
		}
	}
	return ""
}

// Close stops all answers.
func (a *Announcer) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for d, r := range a.devices {
		r.close()
		delete(a.devices, d)
	}
}
