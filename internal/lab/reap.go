// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

// Reap clears the labs whose owners died without doing so. Labs that stand, or
// whose owners live, are left alone.
func (s Store) Reap() error {
	names, err := s.names()
	if err != nil {
		return fmt.Errorf("clear dead labs: %w", err)
	}
	var errs []error
	for _, name := range names {
		if err := s.reapOne(name); err != nil {
			errs = append(errs, fmt.Errorf("clear dead lab %s: %w", name, err))
		}
	}
	s.sweep()
	return errors.Join(errs...)
}

func (s Store) reapOne(name string) error {
	path := s.statePath(name)
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // its owner lives
	}
	if !sameFile(file, path) {
		return nil // it changed hands before we had the lock
	}
	var info Info
	if err := readState(path, &info); err == nil && info.Standing {
		return nil
	}
	return s.destroy(name)
}

// sameFile reports whether path still stands for the open file.
func sameFile(file *os.File, path string) bool {
	open, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(open, named)
}

// sweep removes state files that a killed process never gave a name. Those that
// are locked belong to a live one.
func (s Store) sweep() {
	paths, _ := filepath.Glob(filepath.Join(s.labs(), ".new-*"))
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			continue
		}
		if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil && sameFile(file, path) {
			_ = os.Remove(path)
		}
		_ = file.Close()
	}
}

// Down removes a lab that stands. It matches os.ErrNotExist if there is none,
// and refuses one that a live process owns.
func (s Store) Down(name string) error {
	if !validName.MatchString(name) {
		return optionErrorf("lab name %q: want 1 to 40 lower-case letters, digits and dashes", name)
	}
	file, err := os.Open(s.statePath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return &NotFoundError{Name: name}
	}
	if err != nil {
		return fmt.Errorf("lab %s: %w", name, err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("lab %s: a running process owns it", name)
	}
	if err := s.destroy(name); err != nil {
		return fmt.Errorf("lab %s: %w", name, err)
	}
	return nil
}

// destroy removes all that a lab of that name may consist of, whatever is left
// of it. The record goes last, so that a destroy that is cut short is done again
// by the next Reap or Down.
func (s Store) destroy(name string) error {
	namespaces, err := nl.ListNamespaces(namespacePrefix(name))
	if err != nil {
		return err
	}
	errs := []error{
		endProcesses(namespaces, dockerCgroup(name)), unmountBPF(s.bpfMount(name)), removeCgroup(name),
		removeDockerCgroups(name), os.RemoveAll(s.switchDir(name)), os.RemoveAll(s.dockerDir(name)),
		s.removePlugins(name),
	}
	for _, namespace := range namespaces {
		errs = append(errs, nl.DeleteNamespace(namespace))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.Remove(s.statePath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
