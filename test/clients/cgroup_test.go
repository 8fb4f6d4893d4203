// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupPrefix is the prefix of the names of machines' control groups. The ID of the test's process and a dash follow.
const cgroupPrefix = "mst-test-"

// removeCgroups removes the control group of that name and all below it in each
// hierarchy. It waits for the killed processes in it to end.
func removeCgroups(name string) error {
	paths, err := cgroups(name)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		errs = append(errs, removeTree(path))
	}
	return errors.Join(errs...)
}

func removeTree(top string) error {
	for deadline := time.Now().Add(waitDelay); ; time.Sleep(5 * time.Millisecond) {
		var dirs []string
		_ = filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append([]string{path}, dirs...) // children first
			}
			return nil
		})
		var err error
		for _, dir := range dirs {
			if e := unix.Rmdir(dir); e != nil && !errors.Is(e, fs.ErrNotExist) {
				err = fmt.Errorf("remove control group %s: %w", dir, e)
			}
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// clearCgroups removes the control groups of machines whose tests were killed.
func clearCgroups() error {
	paths, err := cgroups(cgroupPrefix + "*")
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		if isDead(filepath.Base(path), cgroupPrefix) {
			errs = append(errs, removeTree(path))
		}
	}
	return errors.Join(errs...)
}

// isDead reports whether the process has ended whose ID is in name, between a prefix and a dash.
func isDead(name, prefix string) bool {
	owner, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), "-")
	pid, err := strconv.Atoi(owner)
	if err != nil {
		return false
	}
	_, err = os.Stat(fmt.Sprintf("/proc/%d", pid))
	return errors.Is(err, fs.ErrNotExist)
}

// cgroups returns the control groups directly below the root of each mounted hierarchy
// (proc_pid_mountinfo(5)) whose names match a pattern.
func cgroups(pattern string) ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var paths []string
	for line := range strings.Lines(string(text)) {
		before, after, _ := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if len(fields) < 5 || !strings.HasPrefix(after, "cgroup") {
			continue
		}
		found, err := filepath.Glob(filepath.Join(fields[4], pattern))
		if err != nil {
			return nil, err
		}
		paths = append(paths, found...)
	}
	return paths, nil
}
