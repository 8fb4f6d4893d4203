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

	"mustang/internal/lock"
)

// newFile is a record that is being written. The lock permits one writer at a time.
const newFile = ".new"

// lock opens the directory and waits for its lock. Closing the directory releases it.
func (s *Store) lock(how int) (*os.File, error) {
	dir, err := os.Open(s.dir)
	if err != nil {
		return nil, err
	}
	if err := lock.File(dir, how, s.timeout); err != nil {
		_ = dir.Close()
		return nil, err
	}
	return dir, nil
}

// locked calls fn with the lock, or does nothing if the directory does not exist.
func (s *Store) locked(how int, fn func() error) error {
	dir, err := s.lock(how)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return fn()
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

// names lists the directory, unsorted.
func (s *Store) names() ([]string, error) {
	dir, err := os.Open(s.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// publish writes the record and links it to its names. On an error it leaves nothing.
func (s *Store) publish(r record) (file *os.File, err error) {
	file, err = s.write(r)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = file.Close()
			_, undo := s.unlink(r)
			err = joinUndo(err, undo)
		}
	}()
	name := s.path(r.Owner.file())
	if err := s.change("rename the record", func() error { return os.Rename(s.path(newFile), name) }); err != nil {
		return nil, joinUndo(err, s.remove(newFile))
	}
	for _, l := range r.Leases {
		if err := s.change("link the record", func() error { return os.Link(name, s.path(l.Address.String())) }); err != nil {
			return nil, err
		}
	}
	return file, nil
}

// write writes the record to the new file.
func (s *Store) write(r record) (file *os.File, err error) {
	err = s.change("create the record", func() (err error) {
		file, err = os.OpenFile(s.path(newFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = s.change("write the record", func() error {
		_, err := file.Write(r.marshal())
		return err
	})
	if err != nil {
		_ = file.Close()
		return nil, joinUndo(err, s.remove(newFile))
	}
	return file, nil
}

// sync waits until a new record and its names are on disk.
func (s *Store) sync(file, dir *os.File) error {
	if err := s.change("sync the record", file.Sync); err != nil {
		return err
	}
	return s.change("sync the directory", dir.Sync)
}

// linked returns the leases of r whose addresses are linked to it. A killed writer can leave a record with others.
func (s *Store) linked(r record) ([]Lease, error) {
	var leases []Lease
	for _, l := range r.Leases {
		other, err := s.read(l.Address.String())
		if err != nil && !holdsNoLease(err) {
			return nil, err
		}
		if other.Owner == r.Owner {
			leases = append(leases, l)
		}
	}
	return leases, nil
}

// unlink removes the names of a record, its owner's last, and returns the released addresses.
func (s *Store) unlink(r record) ([]netip.Addr, error) {
	linked, err := s.linked(r)
	if err != nil {
		return nil, err
	}
	var freed []netip.Addr
	for _, l := range linked {
		if err := s.remove(l.Address.String()); err != nil {
			return nil, err
		}
		freed = append(freed, l.Address)
	}
	return freed, s.remove(r.Owner.file())
}

// remove removes a file if it exists.
func (s *Store) remove(name string) error {
	err := s.change("remove a record", func() error { return os.Remove(s.path(name)) })
	if errors.Is(err, unix.EROFS) { // the kernel returns it for missing files as well
		if _, missing := os.Lstat(s.path(name)); missing != nil {
			err = missing
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// sweep removes damaged records, records of earlier boots, and those of owners that are not valid. It returns such owners
// of this boot. Foreign files stay.
func (s *Store) sweep(valid func(Owner) bool) ([]Owner, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	var byKind [ownerFile + 1][]string
	for _, name := range names {
		byKind[kindOf(name)] = append(byKind[kindOf(name)], name)
	}
	freed := map[Owner]bool{}
	for _, name := range slices.Concat(byKind[unfinishedFile:]...) {
		r, err := s.read(name)
		switch {
		case err == nil && valid(r.Owner), errors.Is(err, errForeign), errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil:
			freed[r.Owner] = true
		case !holdsNoLease(err):
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

// joinUndo adds the error of undoing a failed change.
func joinUndo(err, undo error) error {
	if undo == nil {
		return err
	}
	return fmt.Errorf("%w; undo: %w", err, undo)
}

// change runs a change of the disk. what names it in errors.
func (s *Store) change(what string, fn func() error) error {
	if err := s.step(what); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fn()
}
