// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultDir is where labs are recorded.
const DefaultDir = "/run/mustang"

// Store is the directory that labs are recorded in. It has mode 0700, its files
// 0600.
type Store struct {
	// Dir is the directory, made when it is needed.
	Dir string
	// Program is the static mustang that containers are to run; empty means the
	// running program.
	Program string
}

// Info is what the store records of a lab.
type Info struct {
	Options
	// Standing says that the lab belongs to no process.
	Standing bool `json:"standing"`
	// Created is when the lab was begun.
	Created time.Time `json:"created"`
}

const (
	stateSuffix = ".json"
	bpfSuffix   = ".bpf"
	ovsSuffix   = ".ovs"
	// dockerSuffix is short, for the paths of sockets.
	dockerSuffix = ".docker"
	pluginSuffix = ".cni"
)

// namespaceName is the name of a place's namespace. No lab's name has a dot, so
// no lab's prefix is the start of another's.
func namespaceName(lab, place string) string { return namespacePrefix(lab) + place }

func namespacePrefix(lab string) string { return "mst-" + lab + "." }

func (s Store) labs() string                 { return filepath.Join(s.Dir, "labs") }
func (s Store) statePath(name string) string { return filepath.Join(s.labs(), name+stateSuffix) }
func (s Store) bpfMount(name string) string  { return filepath.Join(s.labs(), name+bpfSuffix) }
func (s Store) switchDir(name string) string { return filepath.Join(s.labs(), name+ovsSuffix) }
func (s Store) dockerDir(name string) string { return filepath.Join(s.labs(), name+dockerSuffix) }
func (s Store) pluginDir(name string) string { return filepath.Join(s.labs(), name+pluginSuffix) }
func (s Store) pinRoot(name string) string   { return filepath.Join(s.bpfMount(name), "mustang") }

// claim records a new lab as owned by this process, for as long as the file
// that it returns is open. It matches os.ErrExist if the name is taken.
func (s Store) claim(o Options) (*os.File, error) {
	for _, dir := range []string{s.Dir, s.labs()} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	return s.record(Info{Options: o, Created: time.Now().UTC()}, os.Link)
}

// keep records the lab as standing in the place of its earlier record.
func (s Store) keep(o Options, earlier *os.File) error {
	var info Info
	if err := readState(earlier.Name(), &info); err != nil {
		return err
	}
	info.Options, info.Standing = o, true
	file, err := s.record(info, os.Rename)
	if err != nil {
		return err
	}
	return file.Close()
}

// record writes a lab's state to a file that is locked before it gets its
// name, so that nobody ever finds it unlocked while the owner lives.
func (s Store) record(info Info, publish func(from, to string) error) (_ *os.File, err error) {
	temp, err := os.CreateTemp(s.labs(), ".new-*")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = temp.Close()
		}
		_ = os.Remove(temp.Name())
	}()
	if err := unix.Flock(int(temp.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := json.NewEncoder(temp).Encode(info); err != nil {
		return nil, err
	}
	path := s.statePath(info.Name)
	if err := publish(temp.Name(), path); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("there is one of that name: %w", fs.ErrExist)
		}
		return nil, err
	}
	// Under its final name, for keep.
	file, err := reopenLocked(temp, path)
	if err != nil {
		return nil, err
	}
	return file, nil
}

// reopenLocked gives the open, locked file its published name. The lock belongs
// to the open file description, which the duplicate shares.
func reopenLocked(temp *os.File, path string) (*os.File, error) {
	fd, err := unix.FcntlInt(temp.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate: %w", err)
	}
	_ = temp.Close()
	return os.NewFile(uintptr(fd), path), nil
}

// readState reads one state file.
func readState(path string, info *Info) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, info); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// names returns the names of all recorded labs, sorted.
func (s Store) names() ([]string, error) {
	entries, err := os.ReadDir(s.labs())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if name, ok := strings.CutSuffix(entry.Name(), stateSuffix); ok && validName.MatchString(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// List returns the labs that stand or are owned by a live process, sorted by
// name. Call [Store.Reap] before to clear dead ones.
func (s Store) List() ([]Info, error) {
	names, err := s.names()
	if err != nil {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	infos := []Info{}
	for _, name := range names {
		var info Info
		err := readState(s.statePath(name), &info)
		if errors.Is(err, fs.ErrNotExist) {
			continue // ended meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list labs: %w", err)
		}
		infos = append(infos, info)
	}
	return infos, nil
}
