// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultKernelDir is where kernels are kept. Each takes about 35 MB.
const DefaultKernelDir = "/var/cache/mustang"

// Kernel is an unpacked kernel package.
type Kernel struct {
	Package string // the Debian package's name, like "linux-image-6.12.9+deb12-cloud-amd64"
	Version string // the Debian package's version, like "6.12.9-1"
	Release string // what uname -r says in the guest
	Image   string // path of the bootable image
	Modules string // path of the directory with the modules and modules.dep
}

// String returns the package's name and version.
func (k Kernel) String() string { return k.Package + " " + k.Version }

// check returns an error if the kernel's files are not there.
func (k Kernel) check() error {
	if k.Image == "" || k.Modules == "" || k.Release == "" {
		return errors.New("kernel: image, modules or release is missing")
	}
	if info, err := os.Stat(k.Image); err != nil {
		return fmt.Errorf("kernel image: %w", err)
	} else if !info.Mode().IsRegular() {
		return fmt.Errorf("kernel image: %s is not a file", k.Image)
	}
	if _, err := os.Stat(filepath.Join(k.Modules, modulesDep)); err != nil {
		return fmt.Errorf("kernel modules: %w", err)
	}
	return nil
}

// FetchKernel returns the newest Linux 6.12 for clouds that the package lists of
// this Debian name. It is downloaded and unpacked below dir unless it is there;
// empty means [DefaultKernelDir]. Where there is no such package, or it cannot be
// downloaded, the newest in dir is returned.
func FetchKernel(ctx context.Context, dir string) (Kernel, error) {
	if dir == "" {
		dir = DefaultKernelDir
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Kernel{}, fmt.Errorf("directory for kernels: %w", err)
	}
	unlock, err := lockDir(ctx, dir)
	if err != nil {
		return Kernel{}, err
	}
	defer unlock()
	p, err := newestPackage(ctx)
	if err == nil {
		if kernel, ok := openKernel(dir, p.dirName()); ok {
			return kernel, nil
		}
		err = p.unpack(ctx, dir)
	}
	if err == nil {
		kernel, ok := openKernel(dir, p.dirName())
		if !ok {
			return kernel, fmt.Errorf("package %s: no kernel in it", p.name)
		}
		return kernel, nil
	}
	if ctx.Err() != nil {
		return Kernel{}, err
	}
	if kernel, ok := newestCached(dir); ok {
		return kernel, nil
	}
	return Kernel{}, err
}

// openKernel returns the kernel unpacked in a directory of dir.
func openKernel(dir, name string) (Kernel, bool) {
	p, ok := parseDirName(name)
	if !ok {
		return Kernel{}, false
	}
	base, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		return Kernel{}, false
	}
	found, err := filepath.Glob(filepath.Join(base, "lib/modules/*"))
	if err != nil || len(found) != 1 {
		return Kernel{}, false
	}
	release := filepath.Base(found[0])
	k := Kernel{
		Package: p.name, Version: p.version, Release: release,
		Image: filepath.Join(base, "boot", "vmlinuz-"+release), Modules: found[0],
	}
	return k, k.check() == nil
}

// newestCached returns the newest kernel that is unpacked in dir.
func newestCached(dir string) (Kernel, bool) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return Kernel{}, false
	}
	var kernels []Kernel
	for _, entry := range entries {
		if k, ok := openKernel(dir, entry.Name()); ok {
			kernels = append(kernels, k)
		}
	}
	if len(kernels) == 0 {
		return Kernel{}, false
	}
	return slices.MaxFunc(kernels, func(a, b Kernel) int { return patchLevel(a.Package) - patchLevel(b.Package) }), true
}

// lockDir waits until no other process works in dir, and returns what lets the
// next one in.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("directory for kernels: %w", err)
	}
	for {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = lock.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = lock.Close()
			return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
		}
		select {
		case <-ctx.Done():
			_ = lock.Close()
			return nil, fmt.Errorf("wait for %s: %w", lock.Name(), context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
