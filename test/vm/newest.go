// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// backports has newer kernels than this Debian and the next one.
const backports = "trixie-backports"

var (
	newestImage   = regexp.MustCompile(`(?m)^Depends: .*\blinux-(?:image|binary)-(\d\S*-cloud-amd64)\b`)
	newestVersion = regexp.MustCompile(`(?m)^Version: (\S+)$`)
)

// fetchNewest downloads and unpacks the newest kernel of backports into dir, if dir has no kernel.
func fetchNewest(ctx context.Context, dir string) (err error) {
	if found, _ := filepath.Glob(filepath.Join(dir, "linux-image-*")); len(found) > 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(dir, ".unpack-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	apt, err := backportsOf(ctx, work)
	if err != nil {
		return err
	}
	about, err := output(ctx, work, "apt-cache", append(apt, "show", "--no-all-versions", "linux-image-cloud-amd64")...)
	if err != nil {
		return err
	}
	image, version := newestImage.FindStringSubmatch(about), newestVersion.FindStringSubmatch(about)
	if image == nil || version == nil {
		return fmt.Errorf("%s: no kernel in the description of linux-image-cloud-amd64", backports)
	}
	release, root := image[1], filepath.Join(work, "root")
	packages := []string{"linux-base-" + release, "linux-binary-" + release, "linux-modules-" + release}
	download := append([]string{"download", "-q"}, packages...)
	if _, err := output(ctx, work, "apt-get", append(apt, download...)...); err != nil {
		return err
	}
	files, _ := filepath.Glob(filepath.Join(work, "*.deb"))
	for _, file := range files {
		if _, err := output(ctx, work, "dpkg-deb", "-x", file, root); err != nil {
			return err
		}
	}
	kernel := filepath.Join(root, "usr/lib/modules", release, "vmlinuz")
	if err := errors.Join(os.Symlink("usr/lib", filepath.Join(root, "lib")), os.Mkdir(filepath.Join(root, "boot"), 0o755),
		os.Rename(kernel, filepath.Join(root, "boot/vmlinuz-"+release))); err != nil {
		return err
	}
	if _, err := output(ctx, work, "depmod", "-b", root, release); err != nil {
		return err
	}
	return errors.Join(os.Chmod(root, 0o755), os.Rename(root, filepath.Join(dir, "linux-image-"+release+"_"+version[1])))
}

// backportsOf reads the package lists of backports into a directory, from where this Debian has its own, and returns
// the options with which apt uses them.
func backportsOf(ctx context.Context, dir string) ([]string, error) {
	targets, err := output(ctx, dir, "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)")
	if err != nil {
		return nil, err
	}
	lines := strings.Split(targets, "\n")
	at := slices.IndexFunc(lines, func(line string) bool { return strings.HasSuffix(line, "/debian/ bookworm") })
	if at < 0 {
		return nil, errors.New("no source of Debian bookworm among those of apt")
	}
	uri, _, _ := strings.Cut(lines[at], " ")
	list := filepath.Join(dir, "backports.list")
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "lists/partial"), 0o755),
		os.MkdirAll(filepath.Join(dir, "archives/partial"), 0o755),
		os.WriteFile(list, []byte("deb "+uri+" "+backports+" main\n"), 0o644)); err != nil {
		return nil, err
	}
	options := []string{"-o", "Dir::Etc::SourceList=" + list, "-o", "Dir::Etc::SourceParts=/dev/null",
		"-o", "Dir::State::Lists=" + filepath.Join(dir, "lists"), "-o", "Dir::Cache=" + dir,
		"-o", "APT::Sandbox::User=root"}
	_, err = output(ctx, dir, "apt-get", append(options, "update")...)
	return options, err
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = dir, &stdout, &stderr, append(os.Environ(), "LC_ALL=C")
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(append([]string{name}, args...), " "), err, stderr.String())
	}
	return stdout.String(), nil
}
