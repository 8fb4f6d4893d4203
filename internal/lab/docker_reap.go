// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// dockerCgroup is the name of the control group that the containers of a lab are
// in, in each hierarchy. It is not below the lab's own: with cgroup v2 a group has
// either processes or groups with controllers.
func dockerCgroup(name string) string { return "mst-" + name + ".docker" }

// inCgroup reports whether a process is in the control group of that name, which
// is one below a root, or in one below it.
func inCgroup(pid, name string) bool {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(strings.TrimSpace(line)+"/", "/"+name+"/") {
			return true
		}
	}
	return false
}

// removeDockerCgroups removes the control groups of a lab's containers, whose
// processes were killed. It is no error if there are none.
func removeDockerCgroups(name string) error {
	roots, err := cgroupMounts()
	if err != nil {
		return err
	}
	var errs []error
	for _, root := range roots {
		errs = append(errs, removeCgroupTree(filepath.Join(root, dockerCgroup(name))))
	}
	return errors.Join(errs...)
}

// removeCgroupTree removes a control group and those below it. Their processes
// may take a moment to be gone.
func removeCgroupTree(top string) error {
	for deadline := time.Now().Add(endTimeout); ; time.Sleep(time.Millisecond) {
		var dirs []string
		_ = filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return nil // what goes meanwhile is no matter
		})
		var err error
		for i := len(dirs) - 1; i >= 0; i-- { // those below first
			if e := unix.Rmdir(dirs[i]); e != nil && !errors.Is(e, fs.ErrNotExist) {
				err = fmt.Errorf("remove control group %s: %w", dirs[i], e)
			}
		}
		if err == nil || !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
}

// cgroupMounts returns where the hierarchies of control groups are mounted
// (proc_pid_mountinfo(5)).
func cgroupMounts() ([]string, error) {
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	var mounts []string
	for line := range strings.Lines(string(text)) {
		before, after, _ := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if len(fields) > 4 && strings.HasPrefix(after, "cgroup") {
			mounts = append(mounts, fields[4])
		}
	}
	return mounts, nil
}
