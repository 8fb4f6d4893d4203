// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"mustang/internal/cgroup"
	"mustang/internal/netns"
)

// cgroupProcs is the file that lists a control group's processes and moves them there.
const cgroupProcs = "cgroup.procs"

// errNoCgroup reports that socket translation is not possible on this machine.
var errNoCgroup = fmt.Errorf("socket translation needs a cgroup v2 file system, and none is mounted (%w)", errors.ErrUnsupported)

// cgroupPath returns the path of the control group of a lab. Socket translation is
// attached to it and affects the processes in it.
func cgroupPath(lab string) (string, error) {
	root, err := cgroup.Root()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, cgroupName(lab)), nil
}

// cgroupName is the name of that group below the root.
func cgroupName(lab string) string { return "mst-" + lab }

// dockerCgroup returns the name of the control group of a lab's containers. It is not
// below the lab's own: with cgroup v2, a group has either processes or child groups
// with controllers.
func dockerCgroup(lab string) string { return "mst-" + lab + ".docker" }

// addCgroup creates the lab's control group, if there is a cgroup v2 file system. Labs
// without socket translation have one too, because membership has a small cost that
// would otherwise distort comparisons.
func (l *Lab) addCgroup() error {
	path, err := cgroupPath(l.Options.Name)
	if err != nil {
		return nil
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return fmt.Errorf("create control group: %w", err)
	}
	l.cgroup = path
	return nil
}

// startIn starts cmd in a namespace and in the lab's control group. It gets no signals from the terminal: whoever started it
// ends it.
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

// Move moves a process into the lab's control group, if the lab has one. Its open sockets
// stay in the groups in which they were opened.
func (l *Lab) Move(pid int) error {
	if l.cgroup == "" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(l.cgroup, cgroupProcs), []byte(strconv.Itoa(pid)), 0); err != nil {
		return fmt.Errorf("lab %s: move process %d into the control group: %w", l.Options.Name, pid, err)
	}
	return nil
}

// Within calls do while this process is in the lab's control group, if the lab has one. Sockets
// that do opens stay in it.
func (l *Lab) Within(do func() error) (err error) {
	if l.cgroup == "" {
		return do()
	}
	own, err := ownCgroup()
	if err != nil {
		return fmt.Errorf("lab %s: %w", l.Options.Name, err)
	}
	if err := l.Move(os.Getpid()); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, os.WriteFile(filepath.Join(own, cgroupProcs), []byte(strconv.Itoa(os.Getpid())), 0))
	}()
	return do()
}

// ownCgroup returns the path of this process's control group.
func ownCgroup() (string, error) {
	root, err := cgroup.Root()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok { // that of version 2
			return filepath.Join(root, strings.TrimSpace(path)), nil
		}
	}
	return "", errors.New("this process is in no control group of version 2")
}

// Join moves the calling process into the control group of a recorded lab, if the lab
// has one.
func (s Store) Join(info Info) error {
	path, err := cgroupPath(info.Name)
	if err != nil {
		return nil
	}
	err = os.WriteFile(filepath.Join(path, cgroupProcs), []byte(strconv.Itoa(os.Getpid())), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("join control group of lab %s: %w", info.Name, err)
	}
	return nil
}
