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

	"mustang/internal/netns"
)

// podDir is the machine's directory of the named network namespaces that tests create with testkit.Namespace.
const podDir = "/run/pods"

// mount holds the arguments of one mount(2) call.
type mount struct {
	from, to, kind string
	flags          uintptr
	data           string
}

// machineMounts makes the mounts of a machine in the mount namespace of the calling process, with which they end. They
// hide the sockets of this machine's daemons, and leave only network settings writable.
func machineMounts() error {
	const (
		build    = "/mnt" // the new /run is prepared here
		readOnly = unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY
	)
	// Unmounts outside propagate into this namespace, but mounts in it do not propagate out.
	if err := mountAll(
		mount{"", "/", "", unix.MS_REC | unix.MS_SLAVE, ""},
		mount{"tmpfs", build, "tmpfs", unix.MS_NOSUID, "mode=0755"},
	); err != nil {
		return err
	}
	for _, name := range []string{"/pods", "/bin", "/etc", "/work"} {
		if err := os.Mkdir(build+name, 0o755); err != nil {
			return err
		}
	}
	if err := mountAll(
		mount{netns.Directory, build + "/pods", "", unix.MS_BIND | unix.MS_REC, ""},
		mount{"overlay", "/etc", "overlay", 0, "lowerdir=/etc,upperdir=" + build + "/etc,workdir=" + build + "/work"},
		mount{build, "/run", "", unix.MS_MOVE, ""},
		mount{"tmpfs", "/var/lib", "tmpfs", unix.MS_NOSUID, "mode=0755"},
		mount{"tmpfs", "/opt", "tmpfs", unix.MS_NOSUID, "mode=0755"},
		mount{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"}, // podman's locks
		mount{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	); err != nil {
		return err
	}
	if err := os.Mkdir("/etc/cni", 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := mountAll(mount{"tmpfs", "/etc/cni", "tmpfs", unix.MS_NOSUID, "mode=0755"}); err != nil {
		return err // hides this machine's networks
	}
	for _, dir := range []string{"kernel", "vm", "fs"} {
		dir = "/proc/sys/" + dir
		if err := mountAll(mount{dir, dir, "", unix.MS_BIND, ""}, mount{"", dir, "", readOnly, ""}); err != nil {
			return err
		}
	}
	// Not every machine has these. AppArmor is hidden, so that no profile is loaded.
	for _, m := range []mount{
		{"tmpfs", "/sys/kernel/security", "tmpfs", 0, ""},
		{"bpf", "/sys/fs/bpf", "bpf", 0, "mode=0700"},
	} {
		if _, err := os.Stat(m.to); err != nil {
			continue
		}
		if err := mountAll(m); err != nil {
			return err
		}
	}
	return nil
}

func mountAll(mounts ...mount) error {
	for _, m := range mounts {
		if err := unix.Mount(m.from, m.to, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s%s on %s: %w", m.kind, m.from, m.to, err)
		}
	}
	return nil
}

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
