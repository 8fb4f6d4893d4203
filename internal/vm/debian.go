// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// kernelPackage matches the names of the packages that FetchKernel takes. The
// kernel for clouds has what reaches the root file system built in, and boots
// faster than the one for all hardware.
var kernelPackage = regexp.MustCompile(`^linux-image-6\.12\.(\d+)\S*-cloud-amd64$`)

// debianPackage is a kernel package in a version.
type debianPackage struct{ name, version string }

// dirName is the name of the directory that the package is unpacked in.
func (p debianPackage) dirName() string { return p.name + "_" + p.version }

func parseDirName(name string) (debianPackage, bool) {
	pkg, version, ok := strings.Cut(name, "_")
	return debianPackage{pkg, version}, ok && version != "" && kernelPackage.MatchString(pkg)
}

// patchLevel returns the third part of the kernel's version, or -1 for a package
// that is not wanted.
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

// newestPackage looks into the package lists of this machine.
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
		return newest, errors.New("find a kernel: apt-cache names no package linux-image-6.12.*-cloud-amd64")
	}
	return newest, nil
}

// unpack downloads the package and unpacks it in a directory of dir, which
// appears when it is complete.
func (p debianPackage) unpack(ctx context.Context, dir string) (err error) {
	temporary, err := os.MkdirTemp(dir, ".unpack-")
	if err != nil {
		return fmt.Errorf("directory for kernels: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	// apt downloads as a user of its own, who must be able to write here.
	if _, err := output(ctx, temporary, "apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", p.name+"="+p.version); err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(temporary, "*.deb"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("download package %s: %d files came", p.name, len(found))
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

// indexModules has depmod write the list of modules, which packages come
// without.
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

// publish moves a finished directory to its place, where a broken one may be.
func publish(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.Chmod(from, 0o755); err != nil {
		return err
	}
	return os.Rename(from, to)
}

// output runs a program in dir and returns what it prints. The error holds the
// last line that it complained with.
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
