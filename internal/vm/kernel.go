// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultKernelDir is the default directory of kernels. Each takes about 95 MB.
const DefaultKernelDir = "/var/cache/mustang"

// Kernel is an unpacked kernel package.
type Kernel struct {
	Package string // the Debian package's name, like "linux-image-6.12.9+deb12-cloud-amd64"
	Version string // the Debian package's version, like "6.12.9-1"
	Release string // the output of uname -r in the guest
	Image   string // path of the bootable image
	Modules string // path of the directory with the modules and modules.dep
}

// String returns the package's name and version.
func (k Kernel) String() string { return k.Package + " " + k.Version }

// check returns an error if the kernel's files do not exist.
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

// FetchKernel returns the newest Linux 6.12 for clouds in dir; empty means [DefaultKernelDir].
// Where dir has none, it downloads and unpacks the newest in the package lists of this Debian.
func FetchKernel(ctx context.Context, dir string) (Kernel, error) {
	dir = cmp.Or(dir, DefaultKernelDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Kernel{}, fmt.Errorf("directory for kernels: %w", err)
	}
	unlock, err := lockDir(ctx, dir)
	if err != nil {
		return Kernel{}, err
	}
	defer unlock()
	kernel, ok := newestCached(dir)
	if !ok {
		p, err := newestPackage(ctx)
		if err == nil {
			err = p.unpack(ctx, dir)
		}
		if err != nil {
			return Kernel{}, err
		}
		if kernel, ok = openKernel(dir, p.dirName()); !ok {
			return kernel, fmt.Errorf("package %s contains no kernel", p.name)
		}
	}
	if image, err := uncompress(ctx, kernel.Image); err == nil { // else it boots more slowly
		kernel.Image = image
	}
	return kernel, nil
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

// newestCached returns the newest unpacked kernel in dir.
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

// lockDir locks dir against other processes and returns a function that unlocks it.
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

// kernelPackage matches the packages that FetchKernel uses. The kernel for clouds boots
// faster than the one for all hardware.
var kernelPackage = regexp.MustCompile(`^linux-image-6\.12\.(\d+)\S*-cloud-amd64$`)

// debianPackage is a version of a kernel package.
type debianPackage struct{ name, version string }

// dirName returns the name of the directory that the package is unpacked in.
func (p debianPackage) dirName() string { return p.name + "_" + p.version }

func parseDirName(name string) (debianPackage, bool) {
	pkg, version, ok := strings.Cut(name, "_")
	return debianPackage{pkg, version}, ok && version != "" && kernelPackage.MatchString(pkg)
}

// patchLevel returns the third part of the kernel's version, or -1 for other packages.
func patchLevel(name string) int {
	match := kernelPackage.FindStringSubmatch(name)
	if match == nil {
		return -1
	}
	level, err := strconv.Atoi(match[1])
	if err != nil {
		return -1
	}
	return level
}

// newestPackage returns the newest package in the package lists of this machine.
func newestPackage(ctx context.Context) (debianPackage, error) {
	text, err := output(ctx, "", "apt-cache", "show", "--no-all-versions", "^linux-image-6\\.12\\..*-cloud-amd64$")
	if err != nil {
		return debianPackage{}, fmt.Errorf("find a kernel (apt-get update fetches the package lists): %w", err)
	}
	var newest, p debianPackage
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		switch key {
		case "Package":
			p.name = strings.TrimSpace(value)
		case "Version":
			p.version = strings.TrimSpace(value)
			if patchLevel(p.name) > patchLevel(newest.name) {
				newest = p
			}
		}
	}
	if newest.name == "" {
		return newest, errors.New("find a kernel: no package linux-image-6.12.*-cloud-amd64 in the package lists")
	}
	return newest, nil
}

// unpack downloads the package and unpacks it into a directory of dir, which it creates
// when the content is complete.
func (p debianPackage) unpack(ctx context.Context, dir string) (err error) {
	temporary, err := os.MkdirTemp(dir, ".unpack-")
	if err != nil {
		return fmt.Errorf("directory for kernels: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	// apt would download as a user who cannot write here.
	if _, err := output(ctx, temporary, "apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", p.name+"="+p.version); err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(temporary, "*.deb"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("download package %s: got %d files", p.name, len(found))
	}
	root := filepath.Join(temporary, "root")
	if _, err := output(ctx, temporary, "dpkg-deb", "-x", found[0], root); err != nil {
		return err
	}
	if err := indexModules(ctx, root); err != nil {
		return err
	}
	return publish(root, filepath.Join(dir, p.dirName()))
}

// indexModules writes the list of modules with depmod. Packages contain none.
func indexModules(ctx context.Context, root string) error {
	if _, err := os.Stat(filepath.Join(root, "lib")); err != nil {
		// newer packages have /usr/lib only
		if err := os.Symlink("usr/lib", filepath.Join(root, "lib")); err != nil {
			return err
		}
	}
	found, err := filepath.Glob(filepath.Join(root, "lib/modules/*"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("kernel package: %d directories in lib/modules, want 1", len(found))
	}
	_, err = output(ctx, "", "depmod", "-b", root, filepath.Base(found[0]))
	return err
}

// publish renames a complete directory, and replaces a broken one.
func publish(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.Chmod(from, 0o755); err != nil {
		return err
	}
	return os.Rename(from, to)
}

// output runs a program in dir and returns its output. The error contains the last line
// of its standard error.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	path, err := findTool(name)
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("%s %s: %w: %s", name, args[0], err, lastLines(stderr.String(), 1))
	}
	return stdout.String(), nil
}
