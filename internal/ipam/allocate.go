// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
)

// probes is the number of addresses that are looked up one by one before the directory is listed.
const probes = 16

// allocate selects addresses for o. It removes leases of earlier boots, and otherwise changes the cursors only.
func (s *Store) allocate(o Owner, pools []pool) ([]Lease, error) {
	c, err := s.readCursors()
	if err != nil {
		return nil, err
	}
	if c.boot != s.Boot {
		if _, err := s.sweep(anyOwner); err != nil {
			return nil, err
		}
		c.boot = s.Boot
	}
	if err := s.prepareOwner(o); err != nil {
		return nil, err
	}
	leases := make([]Lease, len(pools))
	for i, p := range pools {
		addr, err := s.pick(p, c.last(p))
		if err != nil {
			return nil, err
		}
		c.advance(p, addr)
		leases[i] = p.lease(o, addr)
	}
	return leases, s.writeCursors(c)
}

// prepareOwner checks that o has no leases, and removes its invalid ones.
func (s *Store) prepareOwner(o Owner) error {
	r, err := s.read(o.file())
	switch {
	case err == nil:
		linked, err := s.linked(r)
		if err == nil && len(linked) == len(r.Leases) {
			err = &HasLeasesError{addressesOf(linked)}
		}
		if err == nil { // its writer was killed before Reserve returned
			_, err = s.unlink(r)
		}
		return err
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, errStale):
		_, err := s.unlink(r)
		return err
	case errors.Is(err, errBroken):
		_, err := s.sweep(anyOwner)
		return err
	}
	return err
}

// pick returns the requested address of the pool, or the first free one after last.
func (s *Store) pick(p pool, last netip.Addr) (netip.Addr, error) {
	if p.requested.IsValid() {
		return p.requested, s.checkFree(p.requested)
	}
	tried := 0
	for addr := range addressesAfter(p.free, last) {
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
	// Every address has a file. Those of invalid files are free.
	if _, err := s.sweep(anyOwner); err != nil {
		return netip.Addr{}, err
	}
	addr, used, err := s.search(p, last)
	if err == nil && !addr.IsValid() {
		err = &FullError{Ranges: p.set, InUse: used}
	}
	return addr, err
}

// search returns the first address after last without a file, and the number of addresses before it. That number is at
// most the number of files, however large the pool.
func (s *Store) search(p pool, last netip.Addr) (free netip.Addr, used int, err error) {
	names, err := s.names()
	if err != nil {
		return netip.Addr{}, 0, err
	}
	taken := make(map[string]bool, len(names))
	for _, name := range names {
		taken[name] = true
	}
	for addr := range addressesAfter(p.free, last) {
		if !taken[addr.String()] {
			return addr, used, nil
		}
		used++
	}
	return netip.Addr{}, used, nil
}

// checkFree checks that an address is free, and removes its file if that is invalid.
func (s *Store) checkFree(addr netip.Addr) error {
	r, err := s.read(addr.String())
	switch {
	case err == nil:
		return fmt.Errorf("%s is in use by %s", addr, r.Owner)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, errBroken), errors.Is(err, errStale):
		return s.remove(addr.String())
	}
	return fmt.Errorf("requested address %s: %w", addr, err)
}

// cursorFile holds the boot and the last address of each pool, one on a line. All lines have the same width and their
// number never shrinks, so the file is overwritten in place and is complete at all times. If it is lost, allocation
// starts again from the first address.
const cursorFile = ".last"

const (
	lineWidth = len("2001:0db8:1111:2222:3333:4444:5555:6666")
	maxLines  = 64 // so that the file fits in a page, which the kernel writes at once
)

type cursors struct {
	boot  string
	addrs []netip.Addr
}

func (s *Store) readCursors() (cursors, error) {
	data, err := s.content(cursorFile)
	if errors.Is(err, fs.ErrNotExist) {
		return cursors{}, nil
	}
	if err != nil {
		return cursors{}, err
	}
	return parseCursors(data), nil
}

// parseCursors ignores lines that are not addresses.
func parseCursors(data []byte) (c cursors) {
	for i, line := range bytes.Fields(data) {
		if i == 0 {
			c.boot = string(line)
		} else if addr, err := netip.ParseAddr(string(line)); err == nil && len(c.addrs) < maxLines {
			c.addrs = append(c.addrs, addr)
		}
	}
	return c
}

// last returns the address that the pool assigned last.
func (c *cursors) last(p pool) netip.Addr {
	if i := slices.IndexFunc(c.addrs, p.has); i >= 0 {
		return c.addrs[i]
	}
	return netip.Addr{}
}

// advance makes addr the pool's last address.
func (c *cursors) advance(p pool, addr netip.Addr) {
	if i := slices.IndexFunc(c.addrs, p.has); i >= 0 {
		c.addrs[i] = addr
		return
	}
	if c.addrs = append(c.addrs, addr); len(c.addrs) > maxLines {
		c.addrs = c.addrs[1:]
	}
}

func (c cursors) marshal() []byte {
	var text bytes.Buffer
	fmt.Fprintf(&text, "%-*s\n", lineWidth, c.boot)
	for _, addr := range c.addrs {
		fmt.Fprintf(&text, "%-*s\n", lineWidth, addr)
	}
	return text.Bytes()
}

func (s *Store) writeCursors(c cursors) error {
	return s.change("write the cursors", func() error {
		file, err := os.OpenFile(s.path(cursorFile), os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		_, err = file.Write(c.marshal())
		return errors.Join(err, file.Close())
	})
}
