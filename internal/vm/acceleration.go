// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"mustang/internal/debian"
)

// Accelerations of guests.
const (
	KVM = "kvm" // the processor's virtualization
	TCG = "tcg" // emulation by QEMU ("tiny code generator")
)

const kvmTimeout = 10 * time.Second

// accelerations caches the results of [Acceleration] by the kernel's image.
var (
	accelerations      = map[string]string{}
	accelerationsMutex sync.Mutex
)

// Acceleration returns [KVM] if a bare guest of the running program boots with it on this machine, else [TCG]. KVM
// inside of a virtual machine can lack features that a kernel needs. The first call takes as long as a boot.
func Acceleration(ctx context.Context, kernel Kernel) (string, error) {
	if err := CheckTools(true); err != nil {
		return "", err
	}
	accelerationsMutex.Lock()
	defer accelerationsMutex.Unlock()
	if known, ok := accelerations[kernel.Image]; ok {
		return known, nil
	}
	found := TCG
	if _, err := os.Stat("/dev/kvm"); err == nil {
		_, err := Run(ctx, Options{
			Kernel: kernel, Bare: true, Acceleration: KVM, MemoryMB: 384, BootTimeout: kvmTimeout, Command: []string{"/none"},
		})
		if ctx.Err() != nil {
			return "", err
		}
		if err == nil { // with an exit code: the command does not exist
			found = KVM
		}
	}
	accelerations[kernel.Image] = found
	return found, nil
}

var tools = map[string]string{
	qemu:        "qemu-system-x86",
	virtiofsd:   "qemu-system-common",
	"depmod":    "kmod",
	"apt-cache": "apt",
	"apt-get":   "apt",
	"dpkg-deb":  "dpkg",
	"zstd":      "zstd",
}

func findTool(name string) (string, error) { return debian.Find(name, tools[name], "", "/usr/sbin") }

// CheckTools returns an error unless this machine can run guests. The user has to be root. QEMU and, unless guests are
// bare, its daemon for shared directories have to be installed, else the error names the Debian package.
func CheckTools(bare bool) error {
	needed := []string{qemu, virtiofsd}
	if bare {
		needed = needed[:1]
	}
	err := findTools(needed...)
	if os.Geteuid() != 0 {
		err = errors.New("needs root")
	}
	if err != nil {
		return fmt.Errorf("run in a guest: %w", err)
	}
	return nil
}

func findTools(names ...string) error {
	for _, name := range names {
		if _, err := findTool(name); err != nil {
			return err
		}
	}
	return nil
}

// CheckInstalled returns a [*debian.MissingError] if a program or a kernel for guests is missing. It looks for a
// kernel in the default directory of [FetchKernel] and in the package lists.
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
