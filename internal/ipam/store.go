// SPDX-License-Identifier: Apache-2.0

// Package ipam assigns addresses of a node's ranges, and stores the assignments on disk.
//
// A network is a directory. Each owner has one file in it, its record, named like "3f2a9c@eth0", with a hard link named
// after each of its addresses: an address is in use if a file has its name. Writers hold a lock on the directory (flock),
// which the kernel releases when they die.
//
// A process can be killed between any two steps. A record is created first and removed last, so its owner's name leads to
// everything that is incomplete. Reserve returns only complete records.
//
// Each record has the ID of the boot that created it. No pod survives a reboot, so no lease does: the first writer after a
// boot removes the records of earlier boots, including files that a power failure cut short.
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
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/lock"
)

// Store holds the addresses of one network on this node. Any number of goroutines and processes can use one directory.
type Store struct {
	// Boot is the boot ID of leases; those with another are free. Open sets it.
	Boot string

	dir     string
	timeout time.Duration           // the longest wait for the lock
	step    func(what string) error // called before each change on disk; tests make it fail
}

// BootID returns the kernel's ID of this boot (random(4)).
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

// Open returns the store in a directory, which must hold nothing else. The first Reserve creates it with mode 0700.
func Open(dir string) (*Store, error) {
	boot, err := BootID()
	if err != nil {
		return nil, fmt.Errorf("open addresses in %s: %w", dir, err)
	}
	return &Store{
		Boot:    boot,
		dir:     filepath.Clean(dir),
		timeout: lock.Timeout,
		step:    func(string) error { return nil },
	}, nil
}

// Reserve assigns o one address from each set, in the order of the sets, or none at all. It assigns the addresses of a set
// in turn, so that a released address is reused as late as possible. An address of requested replaces the next address of
// its set. When Reserve returns, the leases are on disk.
//
// It is an error if a requested address is in no range, a gateway, excluded, or in use by another owner. Other errors: those
// of [Validate], *[FullError], and *[HasLeasesError], which matches fs.ErrExist, if o already has leases: Release them first.
func (s *Store) Reserve(o Owner, sets []RangeSet, requested []netip.Addr) ([]Lease, error) {
	leases, wait, err := s.Begin(o, sets, requested)
	if err == nil {
		err = wait()
	}
	if err != nil {
		return nil, err
	}
	return leases, nil
}

// Begin is Reserve without waiting for the disk. The leases are valid at once, for all processes, and on disk when wait
// returns nil. The caller must call wait; if wait returns an error, it has released the leases.
func (s *Store) Begin(o Owner, sets []RangeSet, requested []netip.Addr) (leases []Lease, wait func() error, err error) {
	leases, synced, err := s.begin(o, sets, requested)
	if err != nil {
		return nil, nil, fmt.Errorf("reserve addresses for %s: %w", o, err)
	}
	return leases, func() error {
		if err := <-synced; err != nil {
			_, undo := s.Release(o)
			return fmt.Errorf("reserve addresses for %s: %w", o, joinUndo(err, undo))
		}
		return nil
	}, nil
}

func (s *Store) begin(o Owner, sets []RangeSet, requested []netip.Addr) ([]Lease, <-chan error, error) {
	if err := o.validate(); err != nil {
		return nil, nil, err
	}
	pools, err := preparePools(sets, requested)
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
	leases, err := s.allocate(o, pools)
	var file *os.File
	if err == nil {
		file, err = s.publish(record{Boot: s.Boot, Owner: o, Leases: leases})
	}
	if err != nil {
		_ = dir.Close() // releases the lock
		return nil, nil, err
	}
	synced := make(chan error, 1)
	// Other processes see the record already, so the lock is not held while the disk is written.
	err = lock.Unlock(dir)
	go func() {
		defer dir.Close()
		defer file.Close()
		synced <- errors.Join(err, s.sync(file, dir))
	}()
	return leases, synced, nil
}

// Release releases the leases of o, those of earlier boots included, and returns their addresses. It is no error if there
// are none. Release does not wait for the disk: a lease that a power failure restores is one of an earlier boot.
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
		return s.unlink(r)
	case errors.Is(err, fs.ErrNotExist):
		return nil, s.remove(newFile) // left if its writer was killed
	case errors.Is(err, errForeign):
		return nil, nil
	case errors.Is(err, errBroken): // its addresses are unknown
		_, err = s.sweep(anyOwner)
	}
	return nil, err
}

// Get returns the leases of o in the order of its sets; none if it has no leases.
func (s *Store) Get(o Owner) (leases []Lease, err error) {
	err = o.validate()
	if err == nil {
		err = s.locked(unix.LOCK_SH, func() error {
			r, err := s.read(o.file())
			if err == nil {
				leases, err = s.linked(r)
			}
			return err
		})
	}
	if err != nil && !holdsNoLease(err) {
		return nil, fmt.Errorf("addresses of %s: %w", o, err)
	}
	return leases, nil
}

// Leases returns all leases, sorted by address.
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
		if kindOf(name) != addressFile {
			continue
		}
		r, err := s.read(name)
		if err == nil {
			lease, _ := r.lease(name)
			leases = append(leases, lease)
		} else if !holdsNoLease(err) {
			return nil, err
		}
	}
	return leases, nil
}

// Keep releases the leases of all owners that are not valid, and removes damaged records and those of earlier boots. It
// returns the owners whose leases of this boot it released, sorted. No Reserve may run for an owner that valid does not
// know yet, since Keep would release its leases. valid can be called several times for one owner, and must not use the store.
func (s *Store) Keep(valid func(Owner) bool) (freed []Owner, err error) {
	err = s.locked(unix.LOCK_EX, func() (err error) {
		freed, err = s.sweep(valid)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("release invalid addresses: %w", err)
	}
	return freed, nil
}

func anyOwner(Owner) bool { return true }

// Free returns nil if Reserve would find an address in each set, and otherwise the error that it would return: one of
// [Validate], or *[FullError]. It changes nothing.
func (s *Store) Free(sets []RangeSet) error {
	pools, err := preparePools(sets, nil)
	if err != nil {
		return fmt.Errorf("find free addresses: %w", err)
	}
	leases, err := s.Leases()
	if err != nil {
		return err
	}
	taken := make(map[netip.Addr]bool, len(leases))
	for _, lease := range leases {
		taken[lease.Address] = true
	}
	for _, p := range pools {
		if !p.hasOther(taken) {
			return &FullError{Ranges: p.set, InUse: len(taken)}
		}
	}
	return nil
}
