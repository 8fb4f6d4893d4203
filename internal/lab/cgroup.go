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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath"
	"mustang/internal/nl"
)

// cgroupFile is where a cgroup's processes are listed, and moved to.
const cgroupFile = "cgroup.procs"

// cgroupPath is the control group of a lab of that name. Socket translation of
// the lab is attached to it, and reaches the processes in it only.
func cgroupPath(name string) (string, error) {
	root, err := datapath.CgroupRoot()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "mst-"+name), nil
}

// errNoCgroup says that a lab can't have socket translation.
var errNoCgroup = errors.New("no cgroup v2 file system is mounted, which socket translation needs")

// addCgroup makes the lab's control group, if there is a cgroup v2 file system.
// Labs without socket translation have one as well: being in one costs each
// process a little, which would stand between the figures otherwise.
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

// removeCgroup removes the control group of a lab whose processes were killed.
// They may take a moment to be gone. It is no error if there is none.
func removeCgroup(name string) error {
	path, err := cgroupPath(name)
	if err != nil {
		return nil // no cgroup v2: no lab has one
	}
	for deadline := time.Now().Add(endTimeout); ; time.Sleep(time.Millisecond) {
		err := unix.Rmdir(path)
		switch {
		case err == nil || errors.Is(err, fs.ErrNotExist):
			return nil
		case !errors.Is(err, unix.EBUSY) || time.Now().After(deadline):
			return fmt.Errorf("remove control group %s: %w", path, err)
		}
	}
}

// Start starts cmd at a place in the lab, so that the lab's services reach it:
// in the place's network namespace, and in the lab's control group if it has
// one. cmd.SysProcAttr must not be set. Where the place is a guest, the guest is
// booted for cmd, see [Lab.startGuest]; in a container the command runs by
// `docker exec`, and has to be this program's.
func (l *Lab) Start(place string, cmd *exec.Cmd) error {
	if g, ok := l.guests.at[place]; ok {
		return l.startGuest(g, cmd)
	}
	ns, err := l.Namespace(place)
	if err != nil {
		return err
	}
	if l.isContainer(place) {
		if err := l.docker.inContainer(place, cmd); err != nil {
			return fmt.Errorf("lab %s: %w", l.Options.Name, err)
		}
	}
	return l.startIn(ns, cmd)
}

// startIn starts cmd in a namespace, and in the lab's control group.
func (l *Lab) startIn(ns *nl.Namespace, cmd *exec.Cmd) error {
	if l.cgroup != "" {
		dir, err := os.Open(l.cgroup)
		if err != nil {
			return fmt.Errorf("open control group: %w", err)
		}
		defer dir.Close()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	}
	return ns.Start(cmd)
}

// Join moves the calling process into the control group of a recorded lab, if
// the lab has one.
func (s Store) Join(info Info) error {
	path, err := cgroupPath(info.Name)
	if err != nil {
		return nil
	}
	err = os.WriteFile(filepath.Join(path, cgroupFile), []byte(strconv.Itoa(os.Getpid())), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("join control group of lab %s: %w", info.Name, err)
	}
	return nil
}
