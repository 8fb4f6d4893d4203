// SPDX-License-Identifier: Apache-2.0

package dockerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// startIsolated starts cmd in a network namespace and in a new mount namespace that
// mounts prepares. The mounts are private to cmd and its children and end with them.
func startIsolated(ns *netns.Namespace, mounts func() error, cmd *exec.Cmd) error {
	return onDyingThread(func() error {
		if err := unix.Setns(ns.FD(), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %q: %w", ns.Name(), err)
		}
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("create mount namespace: %w", err)
		}
		// Unmounts outside propagate into this namespace, but nothing propagates out.
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		if err := mounts(); err != nil {
			return err
		}
		return cmd.Start()
	})
}

// onDyingThread runs fn on an OS thread that ends afterwards, since the changes that fn
// makes to its thread cannot be undone.
func onDyingThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			done <- fn() // never unlocked
			return
		}
		// The first thread never ends, and /proc shows its namespaces for the process.
		// While this goroutine holds it, the next one gets another thread.
		defer runtime.UnlockOSThread()
		done <- onDyingThread(fn)
	}()
	return <-done
}

// enterMounts changes the mounts of the calling thread to those of dockerd. dir becomes
// /run: dockerd, containerd and runc keep files at fixed paths there, and they do not
// find daemons of this machine that they would talk to, such as firewalld on D-Bus.
// Images and containers are in memory.
func enterMounts(dir string) error {
	const settings = "/proc/sys/kernel"
	if err := unix.Mount(settings, settings, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", settings, err)
	}
	// dockerd would raise limits of the whole machine.
	if err := unix.Mount("", settings, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", settings, err)
	}
	for _, m := range []struct{ from, to string }{
		{filepath.Join(dir, "etc"), configDir},
		{filepath.Join(dir, "security"), "/sys/kernel/security"}, // AppArmor: no profile is loaded
		{filepath.Join(dir, "opt"), "/opt"},                      // containerd makes a directory there
		{dir, "/run"},
	} {
		if _, err := os.Stat(m.to); err != nil {
			continue // not on this machine
		}
		if err := unix.Mount(m.from, m.to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s to %s: %w", m.from, m.to, err)
		}
	}
	// overlayfs works on tmpfs, whatever file system dir is on, and the images and
	// containers go with the mount.
	if err := unix.Mount("tmpfs", "/run/data", "tmpfs", unix.MS_NOSUID, "mode=0700"); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	return nil
}

// removeTimeout limits the wait for killed processes to leave their control groups.
const removeTimeout = 5 * time.Second

// RemoveCgroup removes the control groups of that name ([Options.Cgroup]) in all
// hierarchies, after the processes in them were killed. Groups that do not exist are
// no error.
func RemoveCgroup(name string) error {
	roots, err := cgroupMounts()
	if err != nil {
		return err
	}
	var errs []error
	for _, root := range roots {
		errs = append(errs, removeCgroupTree(filepath.Join(root, name)))
	}
	return errors.Join(errs...)
}

// removeCgroupTree removes a control group and those below it. Killed processes may
// stay in them for a moment.
func removeCgroupTree(top string) error {
	for deadline := time.Now().Add(removeTimeout); ; time.Sleep(time.Millisecond) {
		var dirs []string
		_ = filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return nil // groups that vanish meanwhile are no error
		})
		var err error
		for i := len(dirs) - 1; i >= 0; i-- { // children first
			if e := unix.Rmdir(dirs[i]); e != nil && !errors.Is(e, fs.ErrNotExist) {
				err = fmt.Errorf("remove control group %s: %w", dirs[i], e)
			}
		}
		if err == nil || !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
}

// cgroupMounts returns the mount points of all hierarchies of control groups
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
