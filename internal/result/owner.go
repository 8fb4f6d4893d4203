// SPDX-License-Identifier: Apache-2.0

package result

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// Modes of new files and directories, before the umask.
const (
	fileMode = 0o644
	dirMode  = 0o755
)

// Owner is the user and the group of new files; nil means the user and group of this process.
type Owner struct{ UID, GID int }

// SudoUser returns the user who called sudo; nil if that is not how this process, which is
// root, was started.
func SudoUser(getenv func(string) string) *Owner {
	uid, err := strconv.ParseUint(getenv("SUDO_UID"), 10, 31)
	if err != nil || os.Geteuid() != 0 {
		return nil
	}
	gid, err := strconv.ParseUint(getenv("SUDO_GID"), 10, 31)
	if err != nil {
		return nil
	}
	return &Owner{UID: int(uid), GID: int(gid)}
}

func (o *Owner) take(file *os.File) error {
	if o == nil {
		return nil
	}
	return file.Chown(o.UID, o.GID)
}

// makeAll opens a directory, after making it and its parents. It returns the paths of new directories.
func (o *Owner) makeAll(path string) (dir *os.Root, made []string, err error) {
	above, missing := filepath.Clean(path), []string{}
	for dir, err = os.OpenRoot(above); errors.Is(err, fs.ErrNotExist) && filepath.Dir(above) != above; dir,
		err = os.OpenRoot(above) {
		missing = append(missing, filepath.Base(above))
		above = filepath.Dir(above)
	}
	if err != nil {
		return nil, nil, err
	}
	for _, name := range slices.Backward(missing) {
		above = filepath.Join(above, name)
		next, err := o.mkdir(dir, name)
		switch {
		case errors.Is(err, fs.ErrExist): // another process made it
			next, err = dir.OpenRoot(name)
		case err == nil:
			made = append(made, above)
		}
		if err := errors.Join(err, dir.Close()); err != nil {
			return nil, made, fmt.Errorf("create %s: %w", above, reason(err))
		}
		dir = next
	}
	return dir, made, nil
}

func (o *Owner) mkdir(in *os.Root, name string) (*os.Root, error) {
	if err := in.Mkdir(name, dirMode); err != nil {
		return nil, err
	}
	dir, err := in.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	self, err := dir.Open(".")
	if err == nil {
		err = errors.Join(o.take(self), self.Close())
	}
	return dir, err
}

func (o *Owner) writeFile(in *os.Root, name string, data []byte) (err error) {
	temp := hidden(name)
	file, err := in.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err != nil {
		return reason(err)
	}
	defer func() {
		_ = file.Close()
		if err != nil {
			_ = in.Remove(temp)
			err = reason(err)
		}
	}()
	if err := o.take(file); err != nil {
		return err
	}
	if _, err := file.Write(data); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	return in.Rename(temp, name)
}

// relink makes a symbolic link owned by this process: the owner of the directory may replace it.
func relink(in *os.Root, name, target string) error {
	temp := hidden(name)
	if err := in.Symlink(target, temp); err != nil {
		return err
	}
	err := in.Rename(temp, name)
	if err != nil {
		_ = in.Remove(temp)
	}
	return err
}

// hidden returns a name for a file that is not complete.
func hidden(name string) string { return "." + name + "." + strconv.FormatUint(rand.Uint64(), 36) }
