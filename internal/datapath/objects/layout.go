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

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mustang/internal/lock"
)

var (
	// ErrNotRoot is returned by calls that need root's privileges.
	ErrNotRoot = errors.New("the datapath needs root")
	// ErrNoBPFFS reports that a root is not on a BPF file system.
	ErrNoBPFFS = errors.New("not on a BPF file system: mount one with `mount -t bpf bpf /sys/fs/bpf`, " +
		"not below `ip netns exec`, which hides it")
)

// LayoutError reports that the layout of the pinned maps differs from this build's.
type LayoutError struct {
	Root        string
	Found, Want string
}

func (e *LayoutError) Error() string {
	return fmt.Sprintf("%q holds maps of layout %s, and this build has layout %s: mustang reset deletes them, and ends "+
		"all connections through services", e.Root, e.Found, e.Want)
}

// layout holds the paths of pins. The directory of programs for sockets is made with the first control group.
type layout struct{ root, version, maps, programs, socketPrograms, links string }

func newLayout(root string) layout {
	version := filepath.Join(root, fmt.Sprintf("v%d", LayoutVersion))
	return layout{root, version, filepath.Join(version, "maps"), filepath.Join(version, "progs"),
		filepath.Join(version, "socks"), filepath.Join(version, "links")}
}

func (l layout) mapPin(n string) string { return filepath.Join(l.maps, n) }
func (l layout) linkPin(k Link) string  { return filepath.Join(l.links, k.String()) }

func (l layout) programPin(h Hook) string {
	if h.Point == AttachCgroup {
		return filepath.Join(l.socketPrograms, h.PinName())
	}
	return filepath.Join(l.programs, h.PinName())
}

// checkRoot returns the layout under root, DefaultRoot if empty. Errors: ErrNotRoot, ErrNoBPFFS.
func checkRoot(root string) (layout, error) {
	root = cmp.Or(root, DefaultRoot)
	if os.Geteuid() != 0 {
		return layout{}, fmt.Errorf("open %q: %w", root, ErrNotRoot)
	}
	return newLayout(root), checkFilesystem(root)
}

// create makes all directories, which only root may read.
func (l layout) create() error {
	// The last one to be made exists if all do.
	if _, err := os.Stat(l.links); err == nil {
		return nil
	}
	for _, dir := range []string{l.maps, l.programs, l.links} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("create pin directory: %w", err)
		}
	}
	return os.Chmod(l.root, 0o700)
}

func (l layout) check() error {
	all, _, err := layouts(l.root)
	if err != nil {
		return err
	}
	want := filepath.Base(l.version)
	for _, name := range all {
		if name != want {
			return &LayoutError{Root: l.root, Found: name, Want: want}
		}
	}
	return nil
}

// filesRoot has a directory for each datapath, since a BPF file system cannot store files. Both are gone after a
// boot. The directory's name is the number of a map: it is the same wherever the BPF file system is mounted, and
// other maps have other files.
const filesRoot = "/run/mustang/datapath"

func filesOf(l layout) (string, error) {
	m, err := ebpf.LoadPinnedMap(l.mapPin(tcMapPolicySettings), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return "", err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return "", err
	}
	id, _ := info.ID()
	return filepath.Join(filesRoot, strconv.Itoa(int(id))), nil
}

// layouts returns the names of the directories under root with pins of any version, "v9", and of directories whose
// removal is under way or was killed. Other names belong to other programs.
func layouts(root string) (names, unloaded []string, err error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, nil, fmt.Errorf("read pin directory: %w", err)
	}
	for _, entry := range entries {
		name, gone := strings.CutSuffix(entry.Name(), UnloadedSuffix)
		number, ok := strings.CutPrefix(name, "v")
		switch _, err := strconv.ParseUint(number, 10, 32); {
		case !ok || err != nil:
		case gone:
			unloaded = append(unloaded, entry.Name())
		default:
			names = append(names, name)
		}
	}
	return names, unloaded, nil
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

// Remove detaches all programs and deletes all maps under root, DefaultRoot if empty, and root itself if it is then
// empty. It succeeds if there are none. A root that is a symbolic link is an error: its target may be someone else's.
func Remove(ctx context.Context, root string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("remove %q: %w", root, ErrNotRoot)
	}
	l := newLayout(filepath.Clean(cmp.Or(root, DefaultRoot)))
	if info, err := os.Lstat(l.root); err == nil && info.Mode()&os.ModeSymlink != 0 {
		return fmt.Errorf("remove %q: it is a symbolic link", l.root)
	}
	// If the pins have another layout, this layout's lock of the links is missing.
	if links, err := lock.Take(ctx, l.links, nil); err == nil {
		defer links.Unlock()
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	held, err := lock.Take(ctx, l.root, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer held.Unlock()
	// A directory on another file system is not ours to delete.
	if err := checkFilesystem(l.root); err != nil {
		return err
	}
	return l.remove()
}

// remove does so. The caller has both locks.
func (l layout) remove() error {
	all, _, err := layouts(l.root)
	if err != nil {
		return err
	}
	for _, name := range all {
		dir := filepath.Join(l.root, name, "links")
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
	files, errFiles := filesOf(l)
	if err := l.removeUnloaded(); err != nil {
		return err
	}
	for _, name := range all {
		dir := filepath.Join(l.root, name)
		if err := os.Rename(dir, dir+UnloadedSuffix); err != nil {
			return fmt.Errorf("remove pins: %w", err)
		}
	}
	if err := l.removeUnloaded(); err != nil {
		return err
	}
	if errFiles == nil {
		if err := os.RemoveAll(files); err != nil {
			return fmt.Errorf("remove files: %w", err)
		}
		_ = os.Remove(filesRoot) // unless there are other datapaths
	}
	// Other programs' pins beside ours stay, as does root if it is the mount itself.
	err = os.Remove(l.root)
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pins: %w", err)
	}
	return nil
}

// removeUnloaded removes directories that are being removed. The caller has the lock of the rows.
func (l layout) removeUnloaded() error {
	_, unloaded, err := layouts(l.root)
	for _, name := range unloaded {
		if err := os.RemoveAll(filepath.Join(l.root, name)); err != nil {
			return fmt.Errorf("remove pins: %w", err)
		}
	}
	return err
}
