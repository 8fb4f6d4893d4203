// SPDX-License-Identifier: Apache-2.0

package dockerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// enterMounts is a script that runs its further arguments with the mounts of dockerd, in the mount namespace that it is in.
// Its first argument is the directory that becomes /run: dockerd, containerd and runc keep files at fixed paths there, and they
// do not find daemons of this machine that they would talk to, such as firewalld on D-Bus. dockerd would raise limits of the
// whole machine in /proc/sys/kernel. AppArmor finds no profile, and containerd makes a directory in /opt. Images and
// containers are in memory: overlayfs works on tmpfs, whatever file system the directory is on.
const enterMounts = `
dir=$1; shift
settings=/proc/sys/kernel
mount --bind $settings $settings
mount -o remount,bind,ro $settings
for m in etc:` + configDir + ` security:/sys/kernel/security opt:/opt; do
	if [ -d "${m#*:}" ]; then mount --bind "$dir/${m%%:*}" "${m#*:}"; fi
done
mount --bind "$dir" /run
mount -t tmpfs -o nosuid,mode=0700 tmpfs /run/data
exec env -i PATH=/run/bin HOME=/run/tmp TMPDIR=/run/tmp "$@"`

// isolated returns a command that runs a program in a mount namespace of its own, which ends with it and its children.
// Unmounts outside propagate into this namespace, but nothing propagates out. The user's environment stays out: DOCKER_*
// variables, proxies, systemd's socket.
func isolated(dir, program string, args ...string) *exec.Cmd {
	arguments := []string{"--mount", "--propagation=slave", "sh", "-ec", enterMounts, "sh", dir, program}
	return exec.Command("unshare", append(arguments, args...)...)
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
