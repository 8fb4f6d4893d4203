// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/debian"
)

// Accelerations of guests.
const (
	KVM = "kvm" // the processor's virtualization
	TCG = "tcg" // emulation by QEMU ("tiny code generator")
)

const (
	kvmFile = "/dev/kvm"
	// kvmTimeout limits the boot that tests KVM, which takes about a second.
	kvmTimeout = 10 * time.Second
	// kvmError is in the output of QEMU when KVM fails; the guest then hangs.
	kvmError = "KVM internal error"
	// noRootMessage is in the last line of a kernel that has booted and has no root file system.
	noRootMessage = "Unable to mount root fs"
)

// accelerations caches the results of [Acceleration] by the kernel's image.
var accelerations = struct {
	sync.Mutex
	of map[string]string
}{of: map[string]string{}}

// Acceleration returns [KVM] if the kernel boots with it on this machine, else [TCG]. KVM inside of a virtual machine
// can lack features that a kernel needs. The first call takes as long as a boot.
func Acceleration(ctx context.Context, kernel Kernel) (string, error) {
	if err := checkTools(true); err != nil {
		return "", err
	}
	accelerations.Lock()
	defer accelerations.Unlock()
	if known, ok := accelerations.of[kernel.Image]; ok {
		return known, nil
	}
	found := TCG
	if file, err := os.OpenFile(kvmFile, os.O_RDWR, 0); err == nil {
		_ = file.Close()
		boots, err := bootsWith(ctx, kernel, KVM, kvmTimeout)
		if err != nil {
			return "", err
		}
		if boots {
			found = KVM
		}
	}
	accelerations.of[kernel.Image] = found
	return found, nil
}

// bootsWith boots a kernel without a root file system and reports whether it gets as far as looking for one within a time.
func bootsWith(ctx context.Context, kernel Kernel, acceleration string, timeout time.Duration) (bool, error) {
	ours, theirs, err := socketPair("console")
	if err != nil {
		return false, err
	}
	defer ours.Close()
	h := hardware{options: Options{Kernel: kernel, CPUs: 1, MemoryMB: 256, Acceleration: acceleration}, console: theirs}
	runtime.LockOSThread() // QEMU dies with the thread that starts it
	defer runtime.UnlockOSThread()
	machine, err := h.start()
	_ = theirs.Close()
	if err != nil {
		return false, err
	}
	defer machine.kill()
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		select {
		case <-limited.Done():
			if ctx.Err() != nil {
				return false, fmt.Errorf("boot a kernel with %s: %w", acceleration, context.Cause(ctx))
			}
			return false, nil
		case <-machine.done:
			console, _ := io.ReadAll(ours) // the socket holds all that a kernel prints, and ends with QEMU
			return strings.Contains(string(console), noRootMessage), nil
		case <-poll.C:
			if strings.Contains(machine.stderr.String(), kvmError) {
				return false, nil
			}
		}
	}
}

// tools are the required programs with their Debian packages.
var tools = map[string]string{
	qemu:        "qemu-system-x86",
	virtiofsd:   "qemu-system-common",
	"depmod":    "kmod",
	"apt-cache": "apt",
	"apt-get":   "apt",
	"dpkg-deb":  "dpkg",
	"zstd":      "zstd",
}

// findTool returns the path of one of the tools, or a [*debian.MissingError].
func findTool(name string) (string, error) {
	return debian.Find(name, tools[name], "", "/usr/sbin")
}

// CheckTools returns an error unless this machine can run guests: the user has to be root, and QEMU and its daemon for
// shared directories have to be installed, else the error names the Debian package.
func CheckTools() error { return checkTools(false) }

// checkTools is CheckTools; bare guests need no daemon for shared directories.
func checkTools(bare bool) error {
	err := findTools(qemu)
	switch {
	case os.Geteuid() != 0:
		err = errors.New("needs root")
	case err == nil && !bare:
		err = findTools(virtiofsd)
	}
	if err != nil {
		return fmt.Errorf("run in a guest: %w", err)
	}
	return nil
}

// findTools returns a [*debian.MissingError] for the first tool that is not installed.
func findTools(names ...string) error {
	for _, name := range names {
		if _, err := findTool(name); err != nil {
			return err
		}
	}
	return nil
}

// CheckInstalled returns a [*debian.MissingError] if a program that guests need is not installed, or there is no kernel
// for them: neither in the directory that [FetchKernel] uses by default nor in the package lists.
func CheckInstalled() error {
	if err := findTools(qemu, virtiofsd); err != nil {
		return err
	}
	if _, ok := newestCached(DefaultKernelDir); ok {
		return nil
	}
	if err := findTools("apt-cache", "apt-get", "dpkg-deb", "depmod"); err != nil {
		return err
	}
	if _, err := newestPackage(context.Background()); err != nil {
		return &debian.MissingError{Name: "linux-image-6.12.*-cloud-amd64", Remedy: "apt update"}
	}
	return nil
}

// lastLines returns the last n non-blank lines of a text on one line.
func lastLines(text string, n int) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

// release returns the release of the running kernel.
func release() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("read the release of the kernel: %w", err)
	}
	return unix.ByteSliceToString(name.Release[:]), nil
}
