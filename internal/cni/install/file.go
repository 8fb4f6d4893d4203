// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"mustang/internal/lock"
)

// file is a file to install: written under another name, then renamed.
type file struct {
	path    string
	mode    fs.FileMode
	content []byte
	foreign func([]byte) error // returns an error if the existing file belongs to another project
	yields  bool               // such a file stays, and is no error

	had bool // the path exists
}

// temporary returns the path of the new or the old content during the replacement.
// Runtimes ignore both names. The lock of the directory protects them.
func (f *file) temporary(what string) string {
	return filepath.Join(filepath.Dir(f.path), "."+filepath.Base(f.path)+"."+what)
}

func (f *file) fresh() string  { return f.temporary("new") }
func (f *file) backup() string { return f.temporary("old") }

// compare compares the file with the existing one. same is set if there is nothing to do.
// The error is a *ForeignError if the existing file belongs to another project.
func (f *file) compare(force bool) (same bool, err error) {
	info, err := os.Lstat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	f.had = true
	if f.equal() {
		return info.Mode() == f.mode, nil
	}
	have, err := readFile(f.path)
	if err == nil {
		if err = f.foreign(have); err != nil {
			err = &ForeignError{f.path, err}
		}
	}
	if err != nil && (!force || info.IsDir()) {
		return false, err
	}
	return false, nil
}

// equal reports whether the existing file has the content, of which there is some. It does not read all of it at once: an agent compares
// the plugin whenever nodes come or go.
func (f *file) equal() bool {
	in, size, err := openRegular(f.path)
	if err != nil {
		return false
	}
	defer in.Close()
	if size == 0 || size != int64(len(f.content)) {
		return false
	}
	part := make([]byte, 64<<10)
	for rest := f.content; len(rest) > 0; {
		n, err := in.Read(part[:min(len(part), len(rest))])
		if err != nil || !bytes.Equal(part[:n], rest[:n]) {
			return false
		}
		rest = rest[n:]
	}
	return true
}

// maxFile is the size of the largest file that is read, in bytes. The plugin has 14 MiB.
const maxFile = 64 << 20

// readFile reads a regular file.
func readFile(path string) ([]byte, error) {
	in, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	content := make([]byte, size)
	_, err = io.ReadFull(in, content)
	return content, err
}

// openRegular opens a regular file that is not too large. It does not wait for the writer of a named pipe.
func openRegular(path string) (in *os.File, size int64, err error) {
	if in, err = os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0); err != nil {
		return nil, 0, err
	}
	info, err := in.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s: not a regular file", path)
	case info.Size() > maxFile:
		err = fmt.Errorf("%s: more than %d MiB", path, maxFile>>20)
	}
	if err != nil {
		_ = in.Close()
		return nil, 0, err
	}
	return in, info.Size(), nil
}

// left reports whether an error of compare means that the existing file stays.
func (f *file) left(err error) bool {
	var foreign *ForeignError
	return f.yields && errors.As(err, &foreign)
}

// stage writes the new content to its temporary path and syncs it.
func (f *file) stage() error {
	out, err := os.OpenFile(f.fresh(), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, f.mode)
	if err != nil {
		return err
	}
	_, err = out.Write(f.content)
	if err == nil {
		err = out.Chmod(f.mode) // whatever the umask
	}
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

// commit renames the new content to the path. The old content is kept until discard.
func (f *file) commit() error {
	if f.had {
		if err := os.Link(f.path, f.backup()); err != nil {
			return err
		}
	}
	if err := os.Rename(f.fresh(), f.path); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(f.path)); err != nil {
		return errors.Join(err, f.revert())
	}
	return nil
}

// revert undoes commit.
func (f *file) revert() error {
	var err error
	if f.had {
		err = os.Rename(f.backup(), f.path)
	} else {
		err = os.Remove(f.path)
	}
	return errors.Join(err, syncDir(filepath.Dir(f.path)))
}

// discard removes the temporary files.
func (f *file) discard() error {
	var errs []error
	for _, path := range []string{f.fresh(), f.backup()} {
		if _, err := os.Lstat(path); err == nil { // removing a missing file fails on a read-only disk
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

// remove deletes the file. absent is set if it does not exist.
func (f *file) remove() (absent bool, err error) {
	err = os.Remove(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err == nil {
		err = syncDir(filepath.Dir(f.path))
	}
	return false, err
}

// ForeignError reports a file of another project, which is not replaced.
type ForeignError struct {
	Path string
	Why  error
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s belongs to another project: %v", e.Path, e.Why)
}

// Unwrap returns the reason.
func (e *ForeignError) Unwrap() error { return e.Why }

// makeDir creates a directory and its parents. It returns the directories that it created,
// the deepest first. If it fails, it has removed them.
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
			continue // created by another process
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

// removeDirs removes the directories that are empty.
func removeDirs(dirs []string) {
	for _, dir := range dirs {
		_ = os.Remove(dir)
	}
}

// lock waits for the locks of directories as [lock.Take] does, for each directory once.
func lockDirs(ctx context.Context, dirs ...string) (_ func(), err error) {
	var held []*lock.Lock
	unlock := func() {
		for _, l := range held {
			l.Unlock()
		}
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	var infos []fs.FileInfo
	for _, path := range dirs {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(infos, func(other fs.FileInfo) bool { return os.SameFile(info, other) }) {
			continue
		}
		infos = append(infos, info)
		l, err := lock.Take(ctx, path, nil)
		if err != nil {
			return nil, err
		}
		held = append(held, l)
	}
	return unlock, nil
}

// syncDir syncs a directory, so that renamed files survive a crash.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	// Some file systems cannot sync directories.
	if err := dir.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}
