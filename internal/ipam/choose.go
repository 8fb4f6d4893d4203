// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
)

// probes is how many addresses are looked at one by one before the whole directory is listed.
const probes = 16

// choose finds the addresses for o. It frees what earlier boots left, and otherwise changes nothing but the turns.
func (s *Store) choose(o Owner, pools []pool) ([]Lease, error) {
	turns, err := s.turns()
	if err != nil {
		return nil, err
	}
	if turns.boot != s.Boot {
		if _, err := s.sweep(everyone); err != nil {
			return nil, err
		}
		turns.boot = s.Boot
	}
	if err := s.vacant(o); err != nil {
		return nil, err
	}
	leases := make([]Lease, len(pools))
	for i, p := range pools {
		addr, err := s.pick(p, turns.of(p))
		if err != nil {
			return nil, err
		}
		turns.took(p, addr)
		leases[i] = p.lease(o, addr)
	}
	return leases, s.writeTurns(turns)
}

// vacant says whether o is without leases, and clears what it had that counts no more.
func (s *Store) vacant(o Owner) error {
	r, err := s.read(o.file())
	switch {
	case err == nil:
		held, err := s.held(r)
		if err == nil && len(held) == len(r.Leases) {
			err = &HasLeasesError{addresses(held)}
		}
		if err == nil { // half done by a process that was killed, so nobody was told of it
			_, err = s.drop(r)
		}
		return err
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, errStale):
		_, err := s.drop(r)
		return err
	case errors.Is(err, errBroken):
		_, err := s.sweep(everyone)
		return err
	}
	return err
}

// pick finds an address of the pool: the wanted one, or the first free one behind last.
func (s *Store) pick(p pool, last netip.Addr) (netip.Addr, error) {
	if p.wanted.IsValid() {
		return p.wanted, s.claim(p.wanted)
	}
	tried := 0
	for addr := range behind(p.spans, last) {
		if tried++; tried > probes {
			break
		}
		_, err := os.Lstat(s.path(addr.String()))
		if errors.Is(err, fs.ErrNotExist) {
			return addr, nil
		}
		if err != nil {
			return netip.Addr{}, err
		}
	}
	if addr, _, err := s.search(p, last); err != nil || addr.IsValid() {
		return addr, err
	}
	// All have a file. Those that say nothing are free.
	if _, err := s.sweep(everyone); err != nil {
		return netip.Addr{}, err
	}
	addr, used, err := s.search(p, last)
	if err == nil && !addr.IsValid() {
		err = &FullError{Ranges: p.set, InUse: used}
	}
	return addr, err
}

// search finds the first address behind last that no file is named after, and counts those before it. There are no more
// of them than files, however large the pool.
func (s *Store) search(p pool, last netip.Addr) (free netip.Addr, used int, err error) {
	names, err := s.names()
	if err != nil {
		return netip.Addr{}, 0, err
	}
	taken := make(map[string]bool, len(names))
	for _, name := range names {
		taken[name] = true
	}
	for addr := range behind(p.spans, last) {
		if !taken[addr.String()] {
			return addr, used, nil
		}
		used++
	}
	return netip.Addr{}, used, nil
}

// claim says whether this very address is free, and clears away a file that says nothing.
func (s *Store) claim(addr netip.Addr) error {
	r, err := s.read(addr.String())
	switch {
	case err == nil:
		return &TakenError{Address: addr, By: r.Owner}
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, errBroken), errors.Is(err, errStale):
		return s.remove(addr.String())
	}
	return fmt.Errorf("%s is wanted: %w", addr, err)
}
