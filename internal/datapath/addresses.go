// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
)

// addresses counts the services at each address, so that the last one is known.
type addresses struct {
	known   map[objects.Addr]uint32 // all that are stored; nil: read from the map
	changed map[objects.Addr]int    // by the chunk that is being written
}

// knownAddresses are those of all services.
func knownAddresses(all []service.Service) addresses {
	known := make(map[objects.Addr]uint32, len(all))
	for _, s := range all {
		if answersEcho(s) {
			known[rows.EncodeAddr(s.Frontend.Addr())]++
		}
	}
	return addresses{known: known}
}

// answersEcho reports whether programs answer echo requests to the address of a service: at the addresses of nodes the
// kernel does.
func answersEcho(s service.Service) bool { return !s.NodePort && !s.Frontend.Addr().IsLoopback() }

// add notes that there are n more services like s at its address.
func (a *addresses) add(s service.Service, n int) {
	if !answersEcho(s) {
		return
	}
	if a.changed == nil {
		a.changed = make(map[objects.Addr]int)
	}
	a.changed[rows.EncodeAddr(s.Frontend.Addr())] += n
}

// store writes the rows that change. The caller has the lock of the rows. If it is killed, they are counted anew with
// all else that it leaves.
func (a *addresses) store(o *objects.Objects) error {
	counts := make(map[objects.Addr]uint32, len(a.changed))
	for key, n := range a.changed {
		if n == 0 {
			continue
		}
		had, ok := a.known[key]
		if a.known == nil {
			var err error
			if had, ok, err = o.ServiceAddrs.Get(key); err != nil {
				return err
			}
		}
		if !ok && n < 0 {
			continue // a killed process did not come so far
		}
		counts[key] = uint32(max(int(had)+n, 0))
		if a.known != nil {
			a.known[key] = counts[key]
		}
	}
	a.changed = nil
	return o.PutAddresses(counts)
}
