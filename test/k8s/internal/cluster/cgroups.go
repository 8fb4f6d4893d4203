// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// makeCgroups makes a control group, and one for a node's pods in it, in each hierarchy.
func makeCgroups(name, node string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		parent := root
		for _, dir := range []string{filepath.Join(root, name), filepath.Join(root, name, node)} {
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			if err := inherit(parent, dir); err != nil {
				return err
			}
			parent = dir
		}
		if err := delegate(parent); err != nil {
			return err
		}
	}
	return nil
}

// controllers is a file that groups of version 2 have.
const controllers = "cgroup.controllers"

// inherit gives a group its parent's processors, in version 1, or its controllers, in version 2: a group has none by itself.
func inherit(parent, dir string) error {
	if _, err := os.Stat(filepath.Join(parent, controllers)); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, delegate(parent))
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), value, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// delegate lets children of a group of version 2 have all controllers that the kubelet uses.
func delegate(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, controllers))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for name := range strings.FieldsSeq(string(have)) {
		if slices.Contains([]string{"cpu", "cpuset", "memory", "hugetlb", "pids"}, name) {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0o644))
		}
	}
	return err
}

// removeCgroups removes a control group in each hierarchy, and kills what is in it.
func removeCgroups(name string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			err := removeCgroup(filepath.Join(root, name))
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				return err
			}
		}
	}
	return nil
}

// removeCgroup kills the processes of a group and of those below, and removes the groups. It fails while processes end.
func removeCgroup(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		dirs = append(dirs, path)
		pids, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for field := range strings.FieldsSeq(string(pids)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
			}
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, dir := range slices.Backward(dirs) {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// hierarchies returns the roots of all hierarchies of control groups, of both versions.
func hierarchies() (roots []string, err error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		mounted, kind, _ := strings.Cut(lines.Text(), " - ")
		if fields := strings.Fields(mounted); strings.HasPrefix(kind, "cgroup") && len(fields) > 4 && strings.HasPrefix(fields[4], "/sys/fs/cgroup") {
			roots = append(roots, fields[4])
		}
	}
	if len(roots) == 0 {
		return nil, errors.Join(lines.Err(), fmt.Errorf("no control groups below /sys/fs/cgroup"))
	}
	return roots, lines.Err()
}
