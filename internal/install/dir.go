// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// makeDir makes a directory and those above it, and returns those that it made, the
// deepest first. If it fails it has undone what it did.
func makeDir(dir string) (made []string, err error) {
	dir = filepath.Clean(dir)
	var missing []string
	for at := dir; ; at = filepath.Dir(at) {
		_, err := os.Stat(at)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		missing = append(missing, at)
	}
	for _, at := range slices.Backward(missing) {
		err := os.Mkdir(at, 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue // another process was first
		}
		if err == nil {
			made = slices.Insert(made, 0, at)
			err = syncDir(filepath.Dir(at))
		}
		if err != nil {
			removeDirs(made)
			return nil, err
		}
	}
	return made, nil
}

// removeDirs removes directories that nobody has put anything in.
func removeDirs(dirs []string) {
	for _, dir := range dirs {
		_ = os.Remove(dir)
	}
}

// lock takes the locks of directories, each once. The kernel frees them when the
// process ends.
func lock(dirs ...string) (unlock func(), err error) {
	var held []*os.File
	unlock = func() {
		for _, dir := range held {
			_ = dir.Close()
		}
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	var infos []fs.FileInfo
	for _, path := range dirs {
		dir, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		held = append(held, dir)
		info, err := dir.Stat()
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(infos, func(other fs.FileInfo) bool { return os.SameFile(info, other) }) {
			continue
		}
		infos = append(infos, info)
		if err := flock(dir); err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
	return unlock, nil
}

func flock(dir *os.File) error {
	for {
		if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// syncDir makes what was renamed in a directory survive a crash.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	// Some file systems have nothing to sync of a directory, and say so.
	if err := dir.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}
