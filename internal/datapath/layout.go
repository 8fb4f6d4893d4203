// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultRoot is where a node's own datapath is pinned.
const DefaultRoot = "/sys/fs/bpf/mustang"

// LayoutVersion is the version of the maps' layout. It changes with any struct in bpf/mustang/maps.h or sockmaps.h.
const LayoutVersion = 3

// layout knows where things are pinned.
type layout struct{ root string }

func (l layout) version() string        { return filepath.Join(l.root, fmt.Sprintf("v%d", LayoutVersion)) }
func (l layout) maps() string           { return filepath.Join(l.version(), "maps") }
func (l layout) programs() string       { return filepath.Join(l.version(), "progs") }
func (l layout) links() string          { return filepath.Join(l.version(), "links") }
func (l layout) mapPin(n string) string { return filepath.Join(l.maps(), n) }

// create makes all directories, which are root's alone.
func (l layout) create() error {
	// The last one to be made is there if all are.
	if _, err := os.Stat(l.links()); err == nil {
		return nil
	}
	for _, dir := range []string{l.maps(), l.programs(), l.links()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("create pin directory: %w", err)
		}
	}
	return os.Chmod(l.root, 0o700)
}

// check returns a *LayoutError if another version has pinned here.
func (l layout) check() error {
	entries, err := os.ReadDir(l.root)
	if err != nil {
		return fmt.Errorf("read pin directory: %w", err)
	}
	want := filepath.Base(l.version())
	for _, entry := range entries {
		if name := entry.Name(); strings.HasPrefix(name, "v") && name != want {
			return &LayoutError{Root: l.root, Found: name, Want: want}
		}
	}
	return nil
}

// checkFilesystem returns a *BPFFSError unless root is, or can be made, on a BPF file system.
func checkFilesystem(root string) error {
	for dir := root; ; dir = filepath.Dir(dir) {
		var stat unix.Statfs_t
		err := unix.Statfs(dir, &stat)
		switch {
		case errors.Is(err, unix.ENOENT) && dir != "/":
			continue
		case err != nil:
			return fmt.Errorf("look at %q: %w", dir, err)
		case stat.Type != unix.BPF_FS_MAGIC:
			return &BPFFSError{Root: root}
		}
		return nil
	}
}

// Remove detaches all programs and deletes all maps under root, and root itself if nothing else is in it. It is no error
// if there are none.
func Remove(root string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("remove %q: %w", root, ErrNotRoot)
	}
	unlock, err := lock(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	// A directory of something else is not ours to delete.
	if err := checkFilesystem(root); err != nil {
		return err
	}
	if err := detachAll(layout{root: root}); err != nil {
		return err
	}
	layouts, err := filepath.Glob(filepath.Join(root, "v[0-9]*"))
	if err != nil {
		return err
	}
	for _, dir := range layouts {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove pins: %w", err)
		}
	}
	// What others have pinned beside ours stays, as does root when it is the mount itself.
	err = os.Remove(root)
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pins: %w", err)
	}
	return nil
}

// detachAll detaches all programs, of this layout and of others.
func detachAll(l layout) error {
	links, err := filepath.Glob(filepath.Join(l.root, "v*", "links", "*"))
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, path := range links {
		if err := detachLink(path); err != nil {
			return err
		}
	}
	return nil
}
