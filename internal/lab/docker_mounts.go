// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

// startApart starts cmd in a network namespace, and in a mount namespace of its
// own, which is prepared by mounts. What it mounts ends with it and its children,
// and is seen by nobody else.
func startApart(ns *nl.Namespace, mounts func() error, cmd *exec.Cmd) error {
	return onLostThread(func() error {
		if err := unix.Setns(ns.FD(), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %q: %w", ns.Name(), err)
		}
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("create mount namespace: %w", err)
		}
		// What is unmounted outside goes here as well, but nothing comes out.
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		if err := mounts(); err != nil {
			return err
		}
		return cmd.Start()
	})
}

// onLostThread runs fn on an OS thread that ends with it, since what fn does to it
// can't be undone.
func onLostThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			done <- fn() // never unlocked
			return
		}
		// The first thread never ends, and is what /proc shows of the process. As long
		// as we have it nobody else does.
		defer runtime.UnlockOSThread()
		done <- onLostThread(fn)
	}()
	return <-done
}

// dockerMounts gives the calling thread the mounts that dockerd is to have, with
// its files in dir, and images and containers in memory. There dir is /run: what
// dockerd, containerd and runc keep in fixed places is in dir, and they see no
// daemon of this machine that they would talk to, such as firewalld by D-Bus.
func dockerMounts(dir string) error {
	const settings = "/proc/sys/kernel"
	if err := unix.Mount(settings, settings, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", settings, err)
	}
	// dockerd would raise limits of the whole machine.
	if err := unix.Mount("", settings, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", settings, err)
	}
	for _, m := range []struct{ from, to string }{
		{filepath.Join(dir, "etc"), dockerEtc},
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
	// Images and containers are in memory: overlays can be had there, whatever dir is
	// on, and they go with the mount.
	if err := unix.Mount("tmpfs", "/run/data", "tmpfs", unix.MS_NOSUID, "mode=0700"); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	return nil
}
