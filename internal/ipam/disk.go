// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// newFile is a record that is being written. There is one writer at a time, so one name does.
const newFile = ".new"

// lock opens the directory and waits for its lock, which ends when it is closed.
func (s *Store) lock(how int) (*os.File, error) {
	dir, err := os.Open(s.dir)
	if err != nil {
		return nil, err
	}
	if err := flock(dir, how); err != nil {
		_ = dir.Close()
		return nil, fmt.Errorf("lock %s: %w", s.dir, err)
	}
	return dir, nil
}

// locked does something under the lock, or nothing where no address was ever reserved.
func (s *Store) locked(how int, do func() error) error {
	dir, err := s.lock(how)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return do()
}

func unlock(dir *os.File) error { return flock(dir, unix.LOCK_UN) }

func flock(dir *os.File, how int) error {
	for {
		if err := unix.Flock(int(dir.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

// names lists the directory.
func (s *Store) names() ([]string, error) {
	dir, err := os.Open(s.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// publish writes the record and gives it its names, or leaves nothing.
func (s *Store) publish(r record) (file *os.File, err error) {
	file, err = s.write(r)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = file.Close()
			_, undo := s.drop(r)
			err = also(err, undo)
		}
	}()
	name := s.path(r.Owner.file())
	if err := s.do("name", func() error { return os.Rename(s.path(newFile), name) }); err != nil {
		return nil, also(err, s.remove(newFile))
	}
	for _, l := range r.Leases {
		if err := s.do("link", func() error { return os.Link(name, s.path(l.Address.String())) }); err != nil {
			return nil, err
		}
	}
	return file, nil
}

// write puts the record into the new file.
func (s *Store) write(r record) (file *os.File, err error) {
	err = s.do("create", func() (err error) {
		file, err = os.OpenFile(s.path(newFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = s.do("write", func() error {
		_, err := file.Write(r.marshal())
		return err
	})
	if err != nil {
		_ = file.Close()
		return nil, also(err, s.remove(newFile))
	}
	return file, nil
}

// sync waits until a new record and its names are on disk.
func (s *Store) sync(file, dir *os.File) error {
	if err := s.do("sync the file", file.Sync); err != nil {
		return err
	}
	return s.do("sync the directory", dir.Sync)
}

// held is those leases of r that it has: if its writer was killed, there may be a record of more.
func (s *Store) held(r record) ([]Lease, error) {
	var leases []Lease
	for _, l := range r.Leases {
		has, err := s.read(l.Address.String())
		if err != nil && !noLease(err) {
			return nil, err
		}
		if has.Owner == r.Owner {
			leases = append(leases, l)
		}
	}
	return leases, nil
}

// drop takes the names away from a record, its owner's last, and returns the addresses that are free by that.
func (s *Store) drop(r record) ([]netip.Addr, error) {
	held, err := s.held(r)
	if err != nil {
		return nil, err
	}
	var freed []netip.Addr
	for _, l := range held {
		if err := s.remove(l.Address.String()); err != nil {
			return nil, err
		}
		freed = append(freed, l.Address)
	}
	return freed, s.remove(r.Owner.file())
}

// remove removes a file, if there is one.
func (s *Store) remove(name string) error {
	err := s.do("remove", func() error { return os.Remove(s.path(name)) })
	if errors.Is(err, unix.EROFS) { // which the kernel says of what is not there too
		if _, missing := os.Lstat(s.path(name)); missing != nil {
			err = missing
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// sweep removes whatever is of no use: broken, of an earlier boot, or of an owner who is not valid. It returns such owners
// of this boot. What is not ours stays.
func (s *Store) sweep(valid func(Owner) bool) ([]Owner, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	var ranked [owner + 1][]string
	for _, name := range names {
		ranked[rank(name)] = append(ranked[rank(name)], name)
	}
	freed := map[Owner]bool{}
	for _, name := range slices.Concat(ranked[unfinished:]...) {
		r, err := s.read(name)
		switch {
		case err == nil && valid(r.Owner), errors.Is(err, errForeign), errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil:
			freed[r.Owner] = true
		case !noLease(err):
			return nil, err
		}
		if err := s.remove(name); err != nil {
			return nil, err
		}
	}
	return slices.SortedFunc(maps.Keys(freed), func(a, b Owner) int {
		return cmp.Or(cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.IfName, b.IfName))
	}), nil
}

// What a file is by its name, in the order in which a sweep removes them. An owner's file goes last, so that a sweep that
// is killed leaves nothing that its owner can't find.
const (
	foreign = iota
	unfinished
	address
	owner
)

func rank(name string) int {
	if name == newFile {
		return unfinished
	}
	if addr, err := netip.ParseAddr(name); err == nil && addr.String() == name {
		return address
	}
	if _, ok := ownerOf(name); ok {
		return owner
	}
	return foreign
}

// also is err, and what went wrong while it was undone.
func also(err, undo error) error {
	if undo == nil {
		return err
	}
	return fmt.Errorf("%w; and undoing it: %w", err, undo)
}

// do is a step that changes the disk.
func (s *Store) do(what string, change func() error) error {
	if err := s.step(what); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return change()
}
