// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// file is one that is installed: written aside, then renamed into place.
type file struct {
	path    string
	mode    fs.FileMode
	content []byte
	foreign func([]byte) error // why what is there is not ours

	had bool // something is at the path already
}

// beside are the names of the new content and of the old one while the file is
// replaced. Runtimes look at neither; the directory's lock keeps them from being
// used twice.
func (f *file) beside(what string) string {
	return filepath.Join(filepath.Dir(f.path), "."+filepath.Base(f.path)+"."+what)
}

func (f *file) fresh() string  { return f.beside("new") }
func (f *file) backup() string { return f.beside("old") }

// look compares the file with what is there. same is set if there is nothing to do;
// the error is that of a file that is not ours.
func (f *file) look(force bool) (same bool, err error) {
	info, err := os.Lstat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	f.had = true
	have, err := os.ReadFile(f.path)
	if err == nil {
		if err = f.foreign(have); err != nil {
			err = &ForeignError{f.path, err}
		}
	}
	if err != nil && (!force || info.IsDir()) {
		return false, err
	}
	return bytes.Equal(have, f.content) && info.Mode() == f.mode, nil
}

// stage writes the new content aside, down to the disk.
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

// commit puts the new content in place. The old one stays aside until discard.
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

// discard removes what is aside.
func (f *file) discard() error {
	var errs []error
	for _, path := range []string{f.fresh(), f.backup()} {
		if _, err := os.Lstat(path); err == nil { // a disk that is read-only refuses to remove what is not there
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

// remove deletes the file. absent is set if it is not there.
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

// ForeignError says that a file is not of this project, and is left alone.
type ForeignError struct {
	Path string
	Why  error
}

func (e *ForeignError) Error() string { return fmt.Sprintf("%s is not ours: %v", e.Path, e.Why) }

// Unwrap returns why.
func (e *ForeignError) Unwrap() error { return e.Why }
