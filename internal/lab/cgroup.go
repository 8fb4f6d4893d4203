// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/cgroup"
	"mustang/internal/netns"
)

var errNoCgroup = fmt.Errorf("programs for sockets need a cgroup v2 file system, and none is mounted (%w)",
	errors.ErrUnsupported)

// cgroupPath returns the path of a lab's control group, to whose processes socket translation applies.
func cgroupPath(lab string) (string, error) {
	root, err := cgroup.Root()
	return filepath.Join(root, cgroupName(lab)), err
}

func cgroupName(lab string) string { return "mst-" + lab }

// dockerCgroup returns the name of the control group of a lab's containers. It is not below the lab's own: with cgroup
// v2, a group has either processes or child groups with controllers.
func dockerCgroup(lab string) string { return "mst-" + lab + ".docker" }

// addCgroup creates the lab's control group, if there is a cgroup v2 file system. Labs without socket translation have
// one too, because membership has a small cost that would otherwise distort comparisons.
func (l *Lab) addCgroup() error {
	path, err := cgroupPath(l.Options.Name)
	if err != nil || l.store.InPod {
		return nil
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return fmt.Errorf("create control group: %w", err)
	}
	l.cgroup = path
	return nil
}

// startIn starts cmd in a namespace and in the lab's control group, without signals from the terminal.
func (l *Lab) startIn(ns *netns.Namespace, cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if l.cgroup != "" {
		dir, err := os.Open(l.cgroup)
		if err != nil {
			return fmt.Errorf("open control group: %w", err)
		}
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	return ns.Start(cmd)
}

func moveTo(path string, pid int) error {
	return os.WriteFile(filepath.Join(path, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// Move moves a process into the lab's control group, if there is one. Its open sockets stay where they were opened.
func (l *Lab) Move(pid int) error {
	if l.cgroup == "" {
		return nil
	}
	if err := moveTo(l.cgroup, pid); err != nil {
		return fmt.Errorf("lab %s: move process %d into the control group: %w", l.Options.Name, pid, err)
	}
	return nil
}

// Within calls do while this process is in the lab's control group, if there is one. Sockets that do opens stay there.
func (l *Lab) Within(do func() error) (err error) {
	if l.cgroup == "" {
		return do()
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return fmt.Errorf("lab %s: %w", l.Options.Name, err)
	}
	_, after, found := strings.Cut("\n"+string(text), "\n0::") // the group of version 2
	if !found {
		return fmt.Errorf("lab %s: this process is in no control group of version 2", l.Options.Name)
	}
	own, _, _ := strings.Cut(after, "\n")
	if err := l.Move(os.Getpid()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, moveTo(filepath.Join(filepath.Dir(l.cgroup), own), os.Getpid())) }()
	return do()
}

// Join moves the calling process into the control group of a recorded lab, if the lab has one.
func (s Store) Join(info Info) error {
	path, err := cgroupPath(info.Name)
	if err != nil {
		return nil
	}
	if err := moveTo(path, os.Getpid()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("join control group of lab %s: %w", info.Name, err)
	}
	return nil
}

// removeCgroup removes the control groups of a name in all hierarchies, after their processes were killed.
func removeCgroup(name string) error {
	text, err := os.ReadFile("/proc/thread-self/mountinfo") // proc_pid_mountinfo(5)
	if err != nil {
		return err
	}
	var errs []error
	for line := range strings.Lines(string(text)) {
		before, after, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(before); len(fields) > 4 && strings.HasPrefix(after, "cgroup") {
			errs = append(errs, removeCgroupTree(filepath.Join(fields[4], name)))
		}
	}
	return errors.Join(errs...)
}

const killTimeout = 5 * time.Second

// removeCgroupTree removes a control group and the groups below it. Killed processes may stay in them for a moment.
func removeCgroupTree(top string) error {
	for deadline := time.Now().Add(killTimeout); ; time.Sleep(time.Millisecond) {
		var dirs []string
		_ = filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return nil // groups may vanish meanwhile
		})
		var err error
		for _, dir := range slices.Backward(dirs) { // children first
			if e := unix.Rmdir(dir); e != nil && !errors.Is(e, fs.ErrNotExist) {
				err = fmt.Errorf("remove control group %s: %w", dir, e)
			}
		}
		if err == nil || !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
}
