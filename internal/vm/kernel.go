// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"mustang/internal/distro"
	"mustang/internal/lock"
)

// DefaultKernelDir is the default directory of kernels. Each takes about 95 MB.
const DefaultKernelDir = "/var/cache/mustang"

// Kernel is an unpacked kernel package.
type Kernel struct {
	Package string // name and version, like "linux-image-6.12.9+deb12-cloud-amd64 6.12.9-1"
	Release string // the output of uname -r in the guest
	Image   string // path of the bootable image
	Modules string // path of the directory with the modules and modules.dep
}

// String returns the package's name and version.
func (k Kernel) String() string { return k.Package }

const modulesDep = "modules.dep"

func (k Kernel) check() error {
	if k.Image == "" || k.Modules == "" || k.Release == "" {
		return errors.New("kernel: image, modules or release is missing")
	}
	for _, file := range []string{k.Image, filepath.Join(k.Modules, modulesDep)} {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("kernel: %w", err)
		}
	}
	return nil
}

// FetchKernel returns the newest kernel for clouds in dir; empty means [DefaultKernelDir]. If dir is without one, it
// downloads and unpacks the newest Linux 6.12 in the package lists of this Debian.
func FetchKernel(ctx context.Context, dir string) (Kernel, error) {
	dir = cmp.Or(dir, DefaultKernelDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Kernel{}, fmt.Errorf("directory for kernels: %w", err)
	}
	// Another process may download a kernel meanwhile.
	held, err := lock.Take(lock.Wait{Limit: 10 * time.Minute}.WithContext(ctx), dir, nil)
	if err != nil {
		return Kernel{}, fmt.Errorf("directory for kernels: %w", err)
	}
	defer held.Unlock()
	kernel, ok := newestCached(dir)
	if !ok {
		name, err := newestPackage(ctx)
		if err == nil {
			err = unpack(ctx, name, dir)
		}
		if err != nil {
			return Kernel{}, err
		}
		if kernel, ok = openKernel(dir, name); !ok {
			return kernel, fmt.Errorf("package %s contains no kernel", name)
		}
	}
	if image, err := uncompress(ctx, kernel.Image); err == nil { // else it boots more slowly
		kernel.Image = image
	}
	return kernel, nil
}

// CheckInstalled returns a [*distro.MissingError] if a program or a kernel for guests is missing. It looks for a
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
		return &distro.MissingError{Name: "linux-image-6.12.*-cloud-amd64", Remedy: "apt update"}
	}
	return nil
}

func openKernel(dir, name string) (Kernel, bool) {
	base, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil || version(name) < 0 {
		return Kernel{}, false
	}
	found, err := filepath.Glob(filepath.Join(base, "lib/modules/*"))
	if err != nil || len(found) != 1 {
		return Kernel{}, false
	}
	k := Kernel{Package: strings.Replace(name, "_", " ", 1), Release: filepath.Base(found[0]), Modules: found[0]}
	k.Image = filepath.Join(base, "boot", "vmlinuz-"+k.Release)
	return k, k.check() == nil
}

func newestCached(dir string) (newest Kernel, ok bool) {
	entries, _ := os.ReadDir(dir) // without the directory there is none
	best := -1
	for _, entry := range entries {
		if k, opened := openKernel(dir, entry.Name()); opened && version(entry.Name()) > best {
			newest, ok, best = k, true, version(entry.Name())
		}
	}
	return newest, ok
}

// kernelPackage matches PACKAGE_VERSION of kernels for clouds, which boot faster than those for all hardware.
var kernelPackage = regexp.MustCompile(`^linux-image-(\d+)\.(\d+)\.(\d+)\S*-cloud-amd64_\S+$`)

// version returns a number that grows with the version of a kernel package, or -1.
func version(name string) int {
	match := kernelPackage.FindStringSubmatch(name)
	if match == nil {
		return -1
	}
	sum := 0
	for _, part := range match[1:] {
		n, _ := strconv.Atoi(part)
		sum = sum*1000 + n
	}
	return sum
}

func newestPackage(ctx context.Context) (newest string, err error) {
	text, err := output(ctx, "", "apt-cache", "show", "--no-all-versions", "^linux-image-6\\.12\\..*-cloud-amd64$")
	if err != nil {
		return "", fmt.Errorf("find a kernel (apt-get update fetches the package lists): %w", err)
	}
	var name string
	for line := range strings.Lines(text) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), ": "); key {
		case "Package":
			name = value
		case "Version":
			if found := name + "_" + value; version(found) > version(newest) {
				newest = found
			}
		}
	}
	if newest == "" {
		return "", errors.New("find a kernel: no package linux-image-6.12.*-cloud-amd64 in the package lists")
	}
	return newest, nil
}

// unpack downloads a package and unpacks it into a directory of dir, which it creates when the content is complete.
func unpack(ctx context.Context, name, dir string) (err error) {
	temporary, err := os.MkdirTemp(dir, ".unpack-")
	if err != nil {
		return fmt.Errorf("directory for kernels: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	// apt would download as a user who cannot write here.
	_, err = output(ctx, temporary, "apt-get", "download", "-q", "-o", "APT::Sandbox::User=root",
		strings.Replace(name, "_", "=", 1))
	if err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(temporary, "*.deb"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("download package %s: got %d files", name, len(found))
	}
	root := filepath.Join(temporary, "root")
	if _, err := output(ctx, temporary, "dpkg-deb", "-x", found[0], root); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(root, "lib")); err != nil { // newer packages have /usr/lib only
		if err := os.Symlink("usr/lib", filepath.Join(root, "lib")); err != nil {
			return err
		}
	}
	if found, err = filepath.Glob(filepath.Join(root, "lib/modules/*")); err != nil || len(found) != 1 {
		return fmt.Errorf("kernel package: %d directories in lib/modules, want 1", len(found))
	}
	// Packages lack the list of modules.
	if _, err := output(ctx, "", "depmod", "-b", root, filepath.Base(found[0])); err != nil {
		return err
	}
	// A broken directory of that name is replaced.
	complete := filepath.Join(dir, name)
	if err := errors.Join(os.RemoveAll(complete), os.Chmod(root, 0o755)); err != nil {
		return err
	}
	return os.Rename(root, complete)
}

// output runs a program in dir and returns its output. The error contains the last line of its standard error.
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

func lastLines(text string, n int) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

// uncompress returns the path of the uncompressed kernel in a bootable image, which is kept beside it. Emulated
// machines need as long to uncompress a kernel as to boot it. QEMU enters an uncompressed kernel at its PVH entry.
// Callers have the lock of the kernels.
func uncompress(ctx context.Context, image string) (string, error) {
	dir, name := filepath.Split(image)
	path := filepath.Join(dir, "vmlinux-"+strings.TrimPrefix(name, "vmlinuz-"))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	data, err := os.ReadFile(image)
	if err != nil {
		return "", err
	}
	program, err := findTool("zstd")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, program, "-dc")
	// As scripts/extract-vmlinux of the kernel: what follows the payload is an error of zstd.
	cmd.Stdin = bytes.NewReader(data[max(0, bytes.Index(data, []byte("\x28\xb5\x2f\xfd"))):])
	kernel, _ := cmd.Output()
	if !cmd.ProcessState.Exited() { // killed, with a part of the kernel
		return "", fmt.Errorf("uncompress %s: %s ended before it was done", image, program)
	}
	if !bytes.HasPrefix(kernel, []byte(elf.ELFMAG)) {
		return "", fmt.Errorf("uncompress %s: not compressed by zstd", image)
	}
	if err := os.WriteFile(path+".new", kernel, 0o644); err != nil {
		return "", errors.Join(err, os.Remove(path+".new"))
	}
	return path, os.Rename(path+".new", path)
}

const qemu = "qemu-system-x86_64"
const virtiofsd = "/usr/lib/qemu/virtiofsd"

var tools = map[string]string{
	qemu:        "qemu-system-x86",
	virtiofsd:   "qemu-system-common",
	"depmod":    "kmod",
	"apt-cache": "apt",
	"apt-get":   "apt",
	"dpkg-deb":  "dpkg",
	"zstd":      "zstd",
}

func findTool(name string) (string, error) { return distro.Find(name, tools[name], "", "/usr/sbin") }

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
