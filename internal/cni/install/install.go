// SPDX-License-Identifier: Apache-2.0

// Package install installs the CNI plugin, with a network configuration, for container runtimes. At any time, even
// after a crash, a runtime finds each file complete or missing, and no configuration without its plugin.
package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mustang/internal/cni/netconf"
)

// Without a C library, as the client has to start quickly; the machine that compiles need not be of the architecture.
//
//go:generate clang-19 --target=x86_64-linux-gnu -o client_amd64 -O2 -Wall -Wextra -Werror -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables -nostdlib -static -s -fuse-ld=lld-19 -Wl,--build-id=none ../../../cni/client.c
//go:generate clang-19 --target=aarch64-linux-gnu -o client_arm64 -O2 -Wall -Wextra -Werror -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables -nostdlib -static -s -fuse-ld=lld-19 -Wl,--build-id=none ../../../cni/client.c

// Default directories and file name of container runtimes.
const (
	DefaultBinDir   = "/opt/cni/bin"
	DefaultConfDir  = "/etc/cni/net.d"
	DefaultConfName = "10-mustang.conflist"
)

// Place is where a runtime looks for plugins and configurations.
type Place struct {
	BinDir   string // directory of plugins; if empty, Install does not install the plugin
	ConfDir  string // directory of configurations; if empty, Install does not write the configuration
	ConfName string // file name of the configuration in ConfDir: runtimes use the first by name
	// Client is set if an agent does the plugin's work: Install then puts the client (package client) in the plugin's
	// place, and the plugin next to it. A plugin that is the file to install itself stays.
	Client bool

	DryRun bool // Install compares the files alone

	after func(step string) // tests kill the process there
}

// Check validates the place.
func (p Place) Check() error {
	switch {
	case p.BinDir == "":
		return errors.New("the plugin directory is empty")
	case p.ConfDir == "":
		return errors.New("the configuration directory is empty")
	case filepath.Ext(p.ConfName) != ".conflist" || strings.HasPrefix(p.ConfName, ".") ||
		filepath.Base(p.ConfName) != p.ConfName:
		return fmt.Errorf("configuration name %q: want a file name that ends in .conflist", p.ConfName)
	}
	return nil
}

// Conf returns the path of the configuration.
func (p Place) Conf() string { return filepath.Join(p.ConfDir, p.ConfName) }

// program is the plugin under one of its names. A loopback plugin of another project stays. The file is not a link:
// other installers overwrite files in place.
func (p Place) program(name string, content []byte) *file {
	return &file{filepath.Join(p.BinDir, name), 0o755, content, foreignPlugin, name == netconf.LoopbackType}
}

func (p Place) conflist(content []byte) *file {
	return &file{p.Conf(), 0o644, content, foreignList, false}
}

// Install copies the plugin from a path, under both names, then writes the configuration. It replaces files of other
// projects only with force; otherwise the error is a *[ForeignError], nothing is replaced. It waits for others.
func (p Place) Install(ctx context.Context, from string, conflist []byte, force bool) (changes []Change, err error) {
	var files []*file
	var dirs []string
	if p.BinDir != "" {
		plugin, err := readFile(from)
		if err != nil {
			return nil, fmt.Errorf("plugin: %w", err)
		}
		if err := noPlugin(plugin); err != nil {
			return nil, fmt.Errorf("plugin %s: %w", from, err)
		}
		dirs = append(dirs, p.BinDir)
		loopback := p.program(netconf.LoopbackType, plugin)
		files = []*file{p.program(netconf.PluginType, plugin), loopback}
		if own := Client(); p.Client && own != nil && !sameFile(files[0].path, from) {
			// The client comes after the plugin that it runs.
			files = []*file{p.program(netconf.FullPlugin, plugin), loopback, p.program(netconf.PluginType, own)}
		}
	}
	if p.ConfDir != "" {
		dirs, files = append(dirs, p.ConfDir), append(files, p.conflist(conflist))
	}
	if p.DryRun {
		changes, _, err = compare(files, force)
		return changes, err
	}
	for _, dir := range dirs {
		if _, missing := os.Stat(dir); missing != nil {
			defer func() {
				if err != nil {
					_ = os.Remove(dir) // it stays if it is not empty
				}
			}()
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	unlock, err := lockDirs(ctx, dirs...)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return p.replace(files, force)
}

// compare returns the changes that Install makes, and the files that it writes.
func compare(files []*file, force bool) (changes []Change, pending []*file, err error) {
	for _, f := range files {
		done, err := f.compare(force)
		if err != nil {
			return nil, nil, err
		}
		if changes = append(changes, change(f, done)); done == written || done == replaced {
			pending = append(pending, f)
		}
	}
	return changes, pending, nil
}

func (p Place) replace(files []*file, force bool) (changes []Change, err error) {
	changes, pending, err := compare(files, force)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, f := range files { // also leftovers of a killed process
			err = errors.Join(err, f.discard())
		}
	}()
	for step, do := range []func(*file) error{(*file).stage, (*file).commit} {
		for _, f := range pending {
			if err := do(f); err != nil {
				return nil, err
			}
			if p.after != nil {
				p.after([]string{"stage ", "commit "}[step] + f.path)
			}
		}
	}
	return changes, nil
}

// Uninstall removes the configuration, and then the plugin under both names, except the file keep itself. It ignores
// missing files. If a file belongs to another project, it returns a *[ForeignError] and removes nothing.
func (p Place) Uninstall(ctx context.Context, keep string) (changes []Change, err error) {
	dirs := slices.DeleteFunc([]string{p.BinDir, p.ConfDir}, func(dir string) bool {
		_, err := os.Stat(dir)
		return errors.Is(err, fs.ErrNotExist)
	})
	unlock, err := lockDirs(ctx, dirs...)
	if err != nil {
		return nil, err
	}
	defer unlock()
	plugin, full := p.program(netconf.PluginType, nil), p.program(netconf.FullPlugin, nil)
	files := []*file{p.conflist(nil), p.program(netconf.LoopbackType, nil), plugin}
	if _, err := os.Lstat(full.path); err == nil {
		files = append(files, full)
	}
	for _, f := range files {
		done, err := f.compare(false)
		switch {
		case err != nil:
			return nil, err
		case f == plugin && sameFile(f.path, keep):
			done = leftOriginal
		case done == written:
			done = absent
		case done == replaced:
			done = removed
		}
		changes = append(changes, change(f, done))
	}
	for i, f := range files {
		err := f.discard()
		if changes[i].Done == removed {
			err = errors.Join(err, os.Remove(f.path), syncDir(filepath.Dir(f.path)))
		}
		if err != nil {
			return changes[:i], err
		}
	}
	return changes, nil
}

func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	two, otherErr := os.Stat(b)
	return err == nil && otherErr == nil && os.SameFile(one, two)
}

// Installed returns the installed configuration. The error is a *[ForeignError] if it or the plugin belongs to another
// project.
func (p Place) Installed() (conflist []byte, err error) {
	for _, f := range []*file{p.program(netconf.PluginType, nil), p.conflist(nil)} {
		if conflist, err = readFile(f.path); err != nil {
			return nil, err
		}
		if why := f.foreign(conflist); why != nil {
			return nil, &ForeignError{f.path, why}
		}
	}
	return conflist, nil
}

// Before lists the configurations that runtimes use instead, since their names sort first.
func (p Place) Before() ([]string, error) {
	entries, err := os.ReadDir(p.ConfDir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, entry := range entries { // sorted
		isConf := slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(entry.Name()))
		if isConf && !entry.IsDir() && entry.Name() < p.ConfName {
			out = append(out, entry.Name())
		}
	}
	return out, nil
}
