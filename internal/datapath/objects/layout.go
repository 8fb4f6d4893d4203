// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mustang/internal/lock"
)

// layout holds the paths of pins.
type layout struct{ root string }

func (l layout) version() string {
	return filepath.Join(l.root, fmt.Sprintf("v%d", LayoutVersion))
}
func (l layout) maps() string           { return filepath.Join(l.version(), "maps") }
func (l layout) programs() string       { return filepath.Join(l.version(), "progs") }
func (l layout) socketPrograms() string { return filepath.Join(l.version(), "socks") } // made with the first cgroup
func (l layout) links() string          { return filepath.Join(l.version(), "links") }
func (l layout) mapPin(n string) string { return filepath.Join(l.maps(), n) }
func (l layout) linkPin(k Link) string  { return filepath.Join(l.links(), k.String()) }

func (l layout) programPin(h Hook) string {
	if h.Point == AttachCgroup {
		return filepath.Join(l.socketPrograms(), h.PinName())
	}
	return filepath.Join(l.programs(), h.PinName())
}

// checkRoot returns the layout under root, DefaultRoot if empty. Errors: ErrNotRoot, ErrNoBPFFS.
func checkRoot(root string) (layout, error) {
	root = cmp.Or(root, DefaultRoot)
	if os.Geteuid() != 0 {
		return layout{}, fmt.Errorf("open %q: %w", root, ErrNotRoot)
	}
	return layout{root: root}, checkFilesystem(root)
}

// create makes all directories, which only root may read.
func (l layout) create() error {
	// The last one to be made exists if all do.
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
	all, err := layouts(l.root)
	if err != nil {
		return err
	}
	want := filepath.Base(l.version())
	for _, name := range all {
		if name != want {
			return &LayoutError{Root: l.root, Found: name, Want: want}
		}
	}
	return nil
}

// layouts returns the names of the directories under root that hold pins of any version. Other names are other
// programs'.
func layouts(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("read pin directory: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if isLayout(entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// isLayout reports whether a directory of that name holds the pins of a version.
func isLayout(name string) bool {
	number, ok := strings.CutPrefix(name, "v")
	_, err := strconv.ParseUint(number, 10, 32)
	return ok && err == nil
}

// checkFilesystem returns ErrNoBPFFS unless root is, or can be made, on a BPF file system.
func checkFilesystem(root string) error {
	for dir := root; ; dir = filepath.Dir(dir) {
		var stat unix.Statfs_t
		err := unix.Statfs(dir, &stat)
		switch {
		case errors.Is(err, unix.ENOENT) && dir != "/":
			continue
		case err != nil:
			return fmt.Errorf("statfs %q: %w", dir, err)
		case stat.Type != unix.BPF_FS_MAGIC:
			return fmt.Errorf("%q is %w", root, ErrNoBPFFS)
		}
		return nil
	}
}

// Remove detaches all programs and deletes all maps under root, DefaultRoot if empty, and root itself if nothing else
// is in it. It succeeds if there are none. A root that is a symbolic link is an error: what it leads to may be someone
// else's.
func Remove(ctx context.Context, root string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("remove %q: %w", root, ErrNotRoot)
	}
	root = filepath.Clean(cmp.Or(root, DefaultRoot))
	if info, err := os.Lstat(root); err == nil && info.Mode()&os.ModeSymlink != 0 {
		return fmt.Errorf("remove %q: it is a symbolic link", root)
	}
	links, err := lock.Take(ctx, layout{root: root}.links(), nil)
	if err == nil {
		defer links.Unlock()
		// A directory on another file system is not ours to delete.
		if err = checkFilesystem(root); err == nil {
			err = detachAll(root)
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	held, err := lock.Take(ctx, root, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer held.Unlock()
	if err := checkFilesystem(root); err != nil {
		return err
	}
	// If there are no links of this layout: those of others.
	if err := detachAll(root); err != nil {
		return err
	}
	all, err := layouts(root)
	if err != nil {
		return err
	}
	files, errFiles := filesOf(layout{root: root})
	if err := removeUnloaded(root); err != nil {
		return err
	}
	for _, name := range all {
		dir := filepath.Join(root, name)
		if err := os.Rename(dir, dir+UnloadedSuffix); err != nil {
			return fmt.Errorf("remove pins: %w", err)
		}
	}
	if err := removeUnloaded(root); err != nil {
		return err
	}
	if errFiles == nil {
		if err := os.RemoveAll(files); err != nil {
			return fmt.Errorf("remove files: %w", err)
		}
		_ = os.Remove(filesRoot) // unless there are other datapaths
	}
	// Other programs' pins beside ours stay, as does root if it is the mount itself.
	err = os.Remove(root)
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pins: %w", err)
	}
	return nil
}

// removeUnloaded removes such directories. The caller has the lock of root.
func removeUnloaded(root string) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return fmt.Errorf("read pin directory: %w", err)
	}
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), UnloadedSuffix)
		if !ok || !isLayout(name) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(root, entry.Name())); err != nil {
			return fmt.Errorf("remove pins: %w", err)
		}
	}
	return nil
}

// detachAll detaches all programs, of this layout and of others.
func detachAll(root string) error {
	all, err := layouts(root)
	if err != nil {
		return err
	}
	for _, name := range all {
		dir := filepath.Join(root, name, "links")
		links, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("list links: %w", err)
		}
		for _, link := range links {
			if err := detach(filepath.Join(dir, link.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
