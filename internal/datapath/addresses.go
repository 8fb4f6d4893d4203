// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
)

// addresses counts the services at each address, to detect the last one.
type addresses struct {
	known   map[objects.Addr]uint32 // all that are stored; nil: read from the map
	changed map[objects.Addr]int    // by the chunk that is being written
}

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

func (a *addresses) add(s service.Service, n int) {
	if !answersEcho(s) {
		return
	}
	if a.changed == nil {
		a.changed = make(map[objects.Addr]int)
	}
	a.changed[rows.EncodeAddr(s.Frontend.Addr())] += n
}

// store writes the rows that change. The caller has the lock of the rows. After a kill, recovery counts them again.
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
	return putAddresses(o, counts)
}

// putAddresses stores the numbers of services at addresses. Those without any are deleted.
func putAddresses(o *objects.Objects, counts map[objects.Addr]uint32) error {
	var keys, unused []objects.Addr
	var values []uint32
	for key, n := range counts {
		if n == 0 {
			unused = append(unused, key)
			continue
		}
		keys, values = append(keys, key), append(values, n)
	}
	_, err := o.ServiceAddrs.PutBatch(keys, values)
	return errors.Join(err, o.ServiceAddrs.DeleteBatch(unused))
}

// countAddresses counts the services at all addresses again. The caller has the lock of the rows.
func (s Services) countAddresses() error {
	all, err := s.readServices()
	if err != nil {
		return err
	}
	have, err := s.o.ServiceAddrs.Rows()
	if err != nil {
		return err
	}
	counts := knownAddresses(all).known
	for key, n := range have {
		if counts[key] == n {
			delete(counts, key)
		} else {
			counts[key] += 0 // one without services is deleted
		}
	}
	return putAddresses(s.o, counts)
}
