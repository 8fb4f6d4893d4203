// SPDX-License-Identifier: Apache-2.0

// Package ipam assigns addresses of a node's ranges.
//
// A network is a directory with one file for each lease, named after the address and its owner, like
// "10.77.0.7@3f2a9c@eth0". The file contains the boot ID, the subnet and the gateway. Each file is renamed into place:
// a killed process leaves only complete leases, which the owner's name leads to. Writers hold a lock on the directory
// (flock), which the kernel releases when they die.
//
// No pod survives a reboot, so no lease does: the first writer after a boot removes the leases of earlier boots,
// including files that a power failure cut short. So nothing waits for the disk.
package ipam

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/lock"
)

const (
	newFile    = ".new"  // is being written: the lock permits one writer at a time
	cursorFile = ".last" // holds the boot and the addresses assigned last
)

// Store holds the addresses of one network on this node. Any number of goroutines and processes can use one directory.
type Store struct {
	// Boot is the boot ID of leases; leases with another ID are free. Open sets it.
	Boot string

	dir     string
	timeout time.Duration           // the longest wait for the lock
	step    func(what string) error // called before each change on disk; tests make it fail
}

// BootID returns the kernel's ID of this boot (random(4)). It panics without /proc, which network namespaces need too.
var BootID = sync.OnceValue(func() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		panic(err)
	}
	return strings.TrimSpace(string(data))
})

// Open returns the store in a directory, which must hold nothing else. The first Reserve creates it with mode 0700.
func Open(dir string) *Store {
	none := func(string) error { return nil }
	return &Store{Boot: BootID(), dir: filepath.Clean(dir), timeout: lock.Timeout, step: none}
}

// Reserve assigns o one address from each set, in the order of the sets, or none at all: the next address in turn, or
// one of requested.
//
// It is an error if a requested address is in no range, a gateway, excluded, or in use by another owner. Other errors:
// the errors of [Validate], *[FullError], and one that matches fs.ErrExist if o already has leases: Release them first.
func (s *Store) Reserve(o Owner, sets []RangeSet, requested []netip.Addr) (leases []Lease, err error) {
	pools, err := newPools(sets)
	if err == nil {
		err = request(pools, requested)
	}
	if err == nil {
		err = o.validate()
	}
	if err == nil {
		err = os.MkdirAll(s.dir, 0o700)
	}
	if err == nil {
		err = s.locked(unix.LOCK_EX, func(taken []Lease) (err error) {
			if leases, err = s.allocate(o, pools, taken); err == nil {
				err = s.writeAll(leases)
			}
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("reserve addresses for %s: %w", o, err)
	}
	return leases, nil
}

// allocate selects addresses. It removes leases of earlier boots, and otherwise changes the cursors only.
func (s *Store) allocate(o Owner, pools []pool, taken []Lease) (leases []Lease, err error) {
	data, err := s.content(cursorFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	boot, rest, _ := strings.Cut(string(data), "\n")
	var last []netip.Addr
	for _, field := range strings.Fields(rest) {
		if addr, err := netip.ParseAddr(field); err == nil {
			last = append(last, addr)
		}
	}
	owners := make(map[netip.Addr]Owner, len(taken))
	for _, l := range taken {
		switch {
		case boot != s.Boot && !s.read(&l):
			if err := s.remove(l.file()); err != nil {
				return nil, err
			}
		case l.Owner == o:
			return nil, fmt.Errorf("%s already reserved: %w", l.Address, fs.ErrExist)
		default:
			owners[l.Address] = l.Owner
		}
	}
	text := s.Boot + "\n"
	for _, p := range pools {
		addr, err := p.pick(owners, last)
		if err != nil {
			return nil, err
		}
		text += addr.String() + "\n"
		leases = append(leases, Lease{Owner: o, Address: addr, Subnet: p.subnet, Gateway: p.gateway})
	}
	return leases, s.write(cursorFile, text)
}

func (p pool) pick(taken map[netip.Addr]Owner, last []netip.Addr) (netip.Addr, error) {
	if by, found := taken[p.requested]; found {
		return netip.Addr{}, fmt.Errorf("%s is in use by %s", p.requested, by)
	}
	if p.requested.IsValid() {
		return p.requested, nil
	}
	var after netip.Addr
	if i := slices.IndexFunc(last, p.has); i >= 0 {
		after = last[i]
	}
	used := 0
	for addr := range addressesAfter(p.free, after) {
		if _, found := taken[addr]; !found {
			return addr, nil
		}
		used++
	}
	return netip.Addr{}, &FullError{Ranges: p.set, InUse: used}
}

// FullError reports a set without a free address.
type FullError struct {
	Ranges RangeSet
	InUse  int // number of addresses in use, all that the ranges have
}

func (e *FullError) Error() string {
	return fmt.Sprintf("no free address in %s: %d in use", e.Ranges, e.InUse)
}

func (s *Store) writeAll(leases []Lease) error {
	for i, l := range leases {
		if err := s.write(l.file(), fmt.Sprintln(s.Boot, l.Subnet, l.Gateway)); err != nil {
			for _, written := range leases[:i] {
				err = errors.Join(err, s.remove(written.file()))
			}
			return err
		}
	}
	return nil
}

// Release releases the leases of o, also from earlier boots. A missing lease is not an error.
func (s *Store) Release(o Owner) error {
	err := o.validate()
	if err == nil {
		err = s.locked(unix.LOCK_EX, func(all []Lease) (err error) {
			for _, l := range all {
				if l.Owner == o && err == nil {
					err = s.remove(l.file())
				}
			}
			return err
		})
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release addresses of %s: %w", o, err)
	}
	return nil
}

// Get returns the leases of o, sorted by address.
func (s *Store) Get(o Owner) ([]Lease, error) {
	leases, err := s.Leases()
	return slices.DeleteFunc(leases, func(l Lease) bool { return l.Owner != o }), err
}

// Leases returns all leases of this boot, sorted by address.
func (s *Store) Leases() (leases []Lease, err error) {
	err = s.locked(unix.LOCK_SH, func(all []Lease) error {
		for _, l := range all {
			if s.read(&l) {
				leases = append(leases, l)
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	slices.SortFunc(leases, func(a, b Lease) int { return a.Address.Compare(b.Address) })
	return leases, nil
}

// Has reports whether an address is leased, also to an owner of an earlier boot.
func (s *Store) Has(addr netip.Addr) bool {
	leases, _ := s.list() // there may be no directory
	return slices.ContainsFunc(leases, func(l Lease) bool { return l.Address == addr })
}

// Free returns nil if Reserve would find an address in each set, or else Reserve's error. It changes nothing.
func (s *Store) Free(sets []RangeSet) error {
	pools, err := newPools(sets)
	if err != nil {
		return fmt.Errorf("find free addresses: %w", err)
	}
	leases, err := s.Leases()
	if err != nil {
		return err
	}
	owners := make(map[netip.Addr]Owner, len(leases))
	for _, l := range leases {
		owners[l.Address] = l.Owner
	}
	for _, p := range pools {
		if _, err := p.pick(owners, nil); err != nil {
			return err
		}
	}
	return nil
}

// locked calls fn with all leases while it holds the lock. The error matches fs.ErrNotExist without a directory.
func (s *Store) locked(how int, fn func([]Lease) error) error {
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	defer dir.Close() // releases the lock
	if err := lock.File(dir, how, s.timeout); err != nil {
		return err
	}
	all, err := s.list()
	if err != nil {
		return err
	}
	return fn(all)
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Store) content(name string) ([]byte, error) {
	file, err := os.OpenFile(s.path(name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(file)
}

func (s *Store) list() (leases []Lease, err error) {
	dir, err := os.Open(s.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if l, ok := parseName(name); ok {
			leases = append(leases, l)
		}
	}
	return leases, err
}

func (s *Store) read(l *Lease) bool {
	data, _ := s.content(l.file())
	text, current := strings.CutPrefix(string(data), s.Boot+" ")
	if fields := strings.Fields(text); current && len(fields) == 2 {
		l.Subnet, _ = netip.ParsePrefix(fields[0])
		l.Gateway, _ = netip.ParseAddr(fields[1])
	}
	return current
}

func (s *Store) write(name, text string) error {
	err := s.change("write a lease", func() error { return os.WriteFile(s.path(newFile), []byte(text), 0o600) })
	if err == nil {
		err = s.change("rename a lease", func() error { return os.Rename(s.path(newFile), s.path(name)) })
	}
	if err != nil {
		_ = os.Remove(s.path(newFile))
	}
	return err
}

func (s *Store) remove(name string) error {
	err := s.change("remove a lease", func() error { return os.Remove(s.path(name)) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (s *Store) change(what string, fn func() error) error {
	if err := s.step(what); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fn()
}

// Owner is the holder of addresses: an interface of a container.
type Owner struct {
	ContainerID string `json:"container"` // letters, digits, "_", "." and "-"; the first is a letter or digit
	IfName      string `json:"interface"` // a Linux device name: up to 15 bytes without "/", ":" and space
}

// String returns a text like "interface eth0 of container 3f2a9c".
func (o Owner) String() string { return "interface " + o.IfName + " of container " + o.ContainerID }

const (
	separator = "@" // between the parts of a file's name: no address and no container ID contains it
	maxOwner  = 200 // bytes of an owner's names: a file's name has up to 255, and an address takes 39

	alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
)

// validate rejects names that the CNI specification does not allow, so that no file name leaves the directory.
func (o Owner) validate() error {
	switch {
	case o.ContainerID == "":
		return errors.New("empty container ID")
	case strings.Trim(o.ContainerID, alphanumeric+"_.-") != "" || !strings.Contains(alphanumeric, o.ContainerID[:1]):
		return fmt.Errorf("invalid container ID %q: want letters, digits, \"_\", \".\" and \"-\"", o.ContainerID)
	case o.IfName == "" || o.IfName == "." || o.IfName == ".." || len(o.IfName) > 15 ||
		strings.ContainsAny(o.IfName, "/: \t\n\v\f\r\x00"):
		return fmt.Errorf("invalid interface name %q", o.IfName)
	case len(o.ContainerID)+len(o.IfName) > maxOwner:
		return fmt.Errorf("container ID %q is longer than %d bytes", o.ContainerID, maxOwner-len(o.IfName))
	}
	return nil
}

// Lease is a reserved address with its subnet and gateway.
type Lease struct {
	Owner   Owner
	Address netip.Addr
	Subnet  netip.Prefix
	Gateway netip.Addr
}

func (l Lease) file() string {
	return strings.Join([]string{l.Address.String(), l.Owner.ContainerID, l.Owner.IfName}, separator)
}

func parseName(file string) (l Lease, ok bool) {
	text, owner, _ := strings.Cut(file, separator)
	l.Address, _ = netip.ParseAddr(text)
	l.Owner.ContainerID, l.Owner.IfName, _ = strings.Cut(owner, separator)
	return l, l.Address.Zone() == "" && l.file() == file && l.Owner.validate() == nil
}
