// SPDX-License-Identifier: Apache-2.0

// Package announce answers ARP requests and neighbour solicitations for addresses of Services.
package announce

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
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
}

// New returns an announcer for the devices of a network namespace that answers for no address.
func New(ns *netns.Namespace) *Announcer {
	return &Announcer{ns: ns, devices: map[device]*responder{}}
}

// Apply makes the devices that have an address of the node answer for the owned addresses, and only for them. A device
// announces an address when it is new there.
func (a *Announcer) Apply(node, owned []netip.Addr) error {
	all, err := rtnl.In(a.ns).Devices()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	want := map[device]bool{}
	for _, d := range all {
		has := slices.ContainsFunc(d.Addrs, func(p netip.Prefix) bool { return slices.Contains(node, p.Addr()) })
		if has && len(d.MAC) == 6 && len(owned) > 0 {
			want[device{d.Index, d.Name, [6]byte(d.MAC)}] = true
		}
	}
	for d, r := range a.devices {
		if !want[d] {
			r.close()
			delete(a.devices, d)
		}
	}
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
		err = errors.Join(err, r.set(owned))
	}
	return err
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
