// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// Reap removes the labs of killed owners. It keeps labs that are standing or whose owners live.
func (s Store) Reap() error {
	names, err := s.names()
	if err != nil {
		return fmt.Errorf("remove dead labs: %w", err)
	}
	var errs []error
	for _, name := range names {
		if err := s.reapOne(name); err != nil {
			errs = append(errs, fmt.Errorf("remove dead lab %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// lock opens the record of a lab and locks it. It returns nil where a live process owns the lab.
func (s Store) lock(name string) (*os.File, error) {
	file, err := os.Open(s.statePath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing(name)
	}
	if err != nil {
		return nil, err
	}
	if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil, file.Close()
	}
	return file, nil
}

func (s Store) reapOne(name string) error {
	file, err := s.lock(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && file == nil {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	locked, err := file.Stat()
	if named, statErr := os.Stat(s.statePath(name)); err != nil || statErr != nil || !os.SameFile(locked, named) {
		return nil // replaced before this process had the lock
	}
	if info, err := readState(s.statePath(name)); err == nil && info.Standing {
		return nil
	}
	return s.destroy(name)
}

// Down removes a standing lab. The error matches os.ErrNotExist if it does not exist. A live process keeps its lab.
func (s Store) Down(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	file, err := s.lock(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return err
	case err == nil && file == nil:
		err = errors.New("a running process owns it")
	case err == nil:
		defer file.Close()
		// If this process is killed, the next Reap removes the rest. An error here, such as a full disk, does not keep it.
		if going, err := s.change(name, func(i *Info) { i.Standing = false }); err == nil {
			defer going.Close()
		}
		err = s.destroy(name)
	}
	if err != nil {
		return fmt.Errorf("lab %s: %w", name, err)
	}
	return nil
}

// destroy removes everything that a lab of that name can consist of. The record goes
// last, so that the next Reap or Down repeats a destroy that was cut short.
func (s Store) destroy(name string) error {
	namespaces, err := netns.List(namespacePrefix(name))
	if err != nil {
		return err
	}
	errs := []error{killProcesses(namespaces, dockerCgroup(name)), unmountBPF(s.bpfMount(name)),
		removeCgroup(cgroupName(name)), removeCgroup(dockerCgroup(name))}
	dirs := []string{s.switchDir(name), s.dockerDir(name), s.savedDir(name), s.pluginDir(name)}
	// An unreadable record names no directory.
	if info, err := readState(s.statePath(name)); err == nil && info.Name == name && info.Disk != "" {
		dirs = append(dirs, info.diskDir())
	}
	errs = slices.Concat(errs, convert(dirs, os.RemoveAll), convert(namespaces, netns.Delete))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.Remove(s.statePath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// killProcesses kills the processes in network namespaces or in a control group, and waits until they have ended.
func killProcesses(namespaces []string, cgroup string) error {
	inodes := map[uint64]bool{}
	var own unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &own); err != nil {
		return err
	}
	for _, name := range namespaces {
		var stat unix.Stat_t // of a namespace, unless a killed process left a plain file
		if unix.Stat(filepath.Join(netns.Directory, name), &stat) == nil && stat.Dev == own.Dev {
			inodes[stat.Ino] = true
		}
	}
	deadline := time.Now().Add(killTimeout)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		pids, err := netns.Processes(func(pid int, inode uint64) bool { return inodes[inode] || inCgroup(pid, cgroup) })
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v survive SIGKILL", pids)
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill %d: %w", pid, err)
			}
		}
		time.Sleep(wait)
	}
}

// inCgroup reports whether a process is in the control group of that name directly below the root, or in its children.
func inCgroup(pid int, name string) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	for line := range strings.Lines(string(text)) {
		if strings.Contains(strings.TrimSpace(line)+"/", "/"+name+"/") {
			return true
		}
	}
	return false
}
