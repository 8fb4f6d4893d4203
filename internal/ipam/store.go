// SPDX-License-Identifier: Apache-2.0

// Package ipam gives out addresses of a node's ranges, and keeps on disk who has which.
//
// A network is a directory. Each owner has one file there, its record, named like "3f2a9c@eth0", and that file has a hard
// link by the name of each of its addresses: an address is in use if a file is called so. Whoever writes holds a lock on
// the directory (flock), which the kernel takes back from the dead.
//
// A process can be killed between any two steps. The record comes first and goes last, so that whatever is half done is
// found by its owner's name; nothing that was not finished was ever returned to anybody.
//
// Each record is stamped with the boot that it was made in. No pod outlives a boot, so neither does a lease: the first
// who writes after a boot clears what earlier boots left, including files that a power failure cut short.
package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Lease is one address, and what comes with it.
type Lease struct {
	Owner   Owner        `json:"-"`
	Address netip.Addr   `json:"address"`
	Subnet  netip.Prefix `json:"subnet"`
	Gateway netip.Addr   `json:"gateway"`
}

// Store is the addresses of one network on this node. Any number of goroutines and processes can use one directory.
type Store struct {
	// Boot is the stamp of leases; those with another are free. Open sets it to the kernel's boot ID.
	Boot string

	dir  string
	step func(what string) error // called before each change on disk; tests fail or die there
}

// bootID is where the kernel tells the ID of this boot (random(4)).
const bootID = "/proc/sys/kernel/random/boot_id"

// Open returns the store in the directory dir, which must be one network's alone. It is made, with mode 0700, when an
// address is first reserved.
func Open(dir string) (*Store, error) {
	boot, err := os.ReadFile(bootID)
	if err != nil {
		return nil, fmt.Errorf("open addresses in %s: %w", dir, err)
	}
	return &Store{
		Boot: strings.TrimSpace(string(boot)),
		dir:  filepath.Clean(dir),
		step: func(string) error { return nil },
	}, nil
}

// Reserve gives o an address out of each set, in the order of the sets, or none at all. Addresses are given out in turn,
// so that one that was freed rests for as long as can be. An address of wanted is given out instead of the next of its
// set. When Reserve returns, the leases are on disk.
//
// Errors: those of [Validate], *[OutsideError], *[FullError], *[TakenError], and *[HasLeasesError], which matches
// fs.ErrExist, if o has leases already: Release them first.
func (s *Store) Reserve(o Owner, sets []RangeSet, wanted []netip.Addr) ([]Lease, error) {
	leases, wait, err := s.Begin(o, sets, wanted)
	if err == nil {
		err = wait()
	}
	if err != nil {
		return nil, err
	}
	return leases, nil
}

// Begin is Reserve without waiting for the disk. The leases hold from now on, for all processes. They are on disk when
// wait returns nil, which the caller must call; if it returns an error they are freed.
func (s *Store) Begin(o Owner, sets []RangeSet, wanted []netip.Addr) (leases []Lease, wait func() error, err error) {
	leases, synced, err := s.begin(o, sets, wanted)
	if err != nil {
		return nil, nil, fmt.Errorf("reserve addresses for %s: %w", o, err)
	}
	return leases, func() error {
		if err := <-synced; err != nil {
			_, undo := s.Release(o)
			return fmt.Errorf("reserve addresses for %s: %w", o, also(err, undo))
		}
		return nil
	}, nil
}

func (s *Store) begin(o Owner, sets []RangeSet, wanted []netip.Addr) ([]Lease, <-chan error, error) {
	if err := o.validate(); err != nil {
		return nil, nil, err
	}
	pools, err := plan(sets, wanted)
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, nil, err
	}
	dir, err := s.lock(unix.LOCK_EX)
	if err != nil {
		return nil, nil, err
	}
	leases, err := s.choose(o, pools)
	var file *os.File
	if err == nil {
		file, err = s.publish(record{Boot: s.Boot, Owner: o, Leases: leases})
	}
	if err != nil {
		_ = dir.Close() // and with it the lock
		return nil, nil, err
	}
	synced := make(chan error, 1)
	// The disk is waited for outside of the lock: others see the record already.
	err = unlock(dir)
	go func() {
		defer dir.Close()
		defer file.Close()
		synced <- errors.Join(err, s.sync(file, dir))
	}()
	return leases, synced, nil
}

// Release frees what o has, and returns it. To release what is not reserved is no error. It frees leases of earlier
// boots too. The disk is not waited for: a lease that a power failure brings back is one of an earlier boot.
func (s *Store) Release(o Owner) (freed []netip.Addr, err error) {
	err = o.validate()
	if err == nil {
		err = s.locked(unix.LOCK_EX, func() (err error) {
			freed, err = s.release(o)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("release addresses of %s: %w", o, err)
	}
	return freed, nil
}

func (s *Store) release(o Owner) ([]netip.Addr, error) {
	r, err := s.read(o.file())
	switch {
	case err == nil, errors.Is(err, errStale):
		return s.drop(r)
	case errors.Is(err, fs.ErrNotExist):
		return nil, s.remove(newFile) // its writer was killed, or there was none
	case errors.Is(err, errForeign):
		return nil, nil
	case errors.Is(err, errBroken): // says nothing of its addresses
		_, err = s.sweep(everyone)
	}
	return nil, err
}

// Get returns what o has now, in the order of its sets: nothing, if it has no leases.
func (s *Store) Get(o Owner) (leases []Lease, err error) {
	err = o.validate()
	if err == nil {
		err = s.locked(unix.LOCK_SH, func() error {
			r, err := s.read(o.file())
			if err == nil {
				leases, err = s.held(r)
			}
			return err
		})
	}
	if err != nil && !noLease(err) {
		return nil, fmt.Errorf("addresses of %s: %w", o, err)
	}
	return leases, nil
}

// Leases returns all that is reserved, by address.
func (s *Store) Leases() (leases []Lease, err error) {
	err = s.locked(unix.LOCK_SH, func() (err error) {
		leases, err = s.list()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	slices.SortFunc(leases, func(a, b Lease) int { return a.Address.Compare(b.Address) })
	return leases, nil
}

func (s *Store) list() ([]Lease, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	var leases []Lease
	for _, name := range names {
		if rank(name) != address {
			continue
		}
		r, err := s.read(name)
		if err == nil {
			lease, _ := r.lease(name)
			leases = append(leases, lease)
		} else if !noLease(err) {
			return nil, err
		}
	}
	return leases, nil
}

// Keep frees the leases of all owners but the valid, and clears away what is broken or of an earlier boot. It returns the
// owners whose leases of this boot it freed, sorted. No Reserve may run for an owner whom valid doesn't know yet: its
// leases would go. valid may be asked about one owner several times, and must not use the store.
func (s *Store) Keep(valid func(Owner) bool) (freed []Owner, err error) {
	err = s.locked(unix.LOCK_EX, func() (err error) {
		freed, err = s.sweep(valid)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("clear addresses: %w", err)
	}
	return freed, nil
}

func everyone(Owner) bool { return true }
