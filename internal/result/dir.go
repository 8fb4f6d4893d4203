// SPDX-License-Identifier: Apache-2.0

package result

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// Dir is the directory of a run under way. A file in it appears whole or not at all, even if the process is killed.
type Dir struct {
	// Path is the directory's path, and Started the time that it is named by without another name.
	Path    string
	Started time.Time

	name            string
	parent, run     *os.Root
	owner           *Owner
	made            []string // new directories above it, the innermost last
	filled          float64
	written, latest bool // whether it has a result, and is the latest run
}

// CreateDir makes a directory for a run that starts now, and its parents as needed. An empty name is the time of the
// start; another one must be free. The new directories belong to the owner; nil is this process. Links below the parent
// that lead out of it are not followed.
func CreateDir(parent, name string, started time.Time, owner *Owner) (d *Dir, err error) {
	d = &Dir{Started: started.UTC().Truncate(time.Second), owner: owner}
	defer func() {
		if err != nil {
			err = fmt.Errorf("output directory %s: %w", parent, errors.Join(reason(err), d.Close()))
		}
	}()
	if d.parent, d.made, err = owner.makeAll(parent); err != nil {
		return d, err
	}
	if info, err := d.parent.Lstat(LatestName); err == nil && info.Mode().Type() != fs.ModeSymlink {
		return d, fmt.Errorf("%s in it is not a symbolic link to a run: remove it", LatestName)
	}
	d.name = cmp.Or(name, d.Started.Format("20060102T150405Z"))
	d.run, err = owner.mkdir(d.parent, d.name)
	for n := 2; name == "" && errors.Is(err, fs.ErrExist); n++ { // of another run in this second
		d.name = fmt.Sprintf("%s-%d", d.Started.Format("20060102T150405Z"), n)
		d.run, err = owner.mkdir(d.parent, d.name)
	}
	if name != "" && errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("run %s exists already: remove it, or take another name", name)
	}
	d.Path = filepath.Join(parent, d.name)
	return d, err
}

// Write checks f and makes it the run's result. Readers see either the previous result or this one. Write skips a
// file without rows. The first file with samples makes [LatestName] name the run.
func (d *Dir) Write(f File) error {
	if len(f.Rows) == 0 {
		return nil
	}
	data, size, err := encode(f)
	d.filled = size.filled()
	if err == nil {
		err = d.owner.writeFile(d.run, FileName, data)
	}
	if err != nil {
		return fmt.Errorf("write results %s: %w", filepath.Join(d.Path, FileName), reason(err))
	}
	d.written = true
	if !d.latest && slices.ContainsFunc(f.Rows, func(r Row) bool { return len(r.Samples) > 0 }) {
		// The link belongs to this process: the owner of the directory may replace it.
		temp := hidden(LatestName)
		err := d.parent.Symlink(d.name, temp)
		if err == nil {
			err = d.parent.Rename(temp, LatestName)
		}
		if err != nil {
			_ = d.parent.Remove(temp)
			return fmt.Errorf("write %s: %w", filepath.Join(filepath.Dir(d.Path), LatestName), reason(err))
		}
		d.latest = true
	}
	return nil
}

// Filled returns how much of the limits of a result file the last one takes: from 1 on, [Read] may refuse it.
func (d *Dir) Filled() float64 { return d.filled }

// Close ends the run. Without a result it removes the directories that it made.
func (d *Dir) Close() (err error) {
	if d.run != nil {
		err = d.run.Close()
		if !d.written {
			_ = d.parent.Remove(d.name) // fails if it has files
		}
	}
	for _, path := range slices.Backward(d.made) {
		if d.written || os.Remove(path) != nil {
			break // another run has used it since
		}
	}
	if d.parent != nil {
		err = errors.Join(err, d.parent.Close())
	}
	d.parent, d.run, d.made = nil, nil, nil
	return err
}

// FindFile returns the result file for a path: a result file, the directory of a run, or the parent directory of the
// latest run.
func FindFile(path string) (string, error) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		return path, nil
	}
	if err == nil {
		run, _ := os.Readlink(filepath.Join(path, LatestName)) // empty without a latest run
		file := filepath.Join(run, FileName)
		if !filepath.IsAbs(run) {
			file = filepath.Join(path, file)
		}
		if info, err = os.Stat(file); run == "" && errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("read results %s: neither %s nor %s is in it: %w", path, FileName, LatestName, fs.ErrNotExist)
		}
		path = file
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("read results %s: %w", path, reason(err))
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("read results %s: not a file", path)
	}
	return path, nil
}

// Owner is the user and the group of new files; nil means the user and group of this process.
type Owner struct{ UID, GID int }

// SudoUser returns the user who called sudo; nil if that is not how this process, which is root, was started.
func SudoUser(getenv func(string) string) *Owner {
	uid, uidErr := strconv.ParseUint(getenv("SUDO_UID"), 10, 31)
	gid, gidErr := strconv.ParseUint(getenv("SUDO_GID"), 10, 31)
	if uidErr != nil || gidErr != nil || os.Geteuid() != 0 {
		return nil
	}
	return &Owner{UID: int(uid), GID: int(gid)}
}

// MakeDir makes a directory and its parents, and is content with one that exists.
func (o *Owner) MakeDir(path string) error {
	dir, _, err := o.makeAll(path)
	if err != nil {
		return fmt.Errorf("output directory %s: %w", path, reason(err))
	}
	return dir.Close()
}

// WriteFile makes data the content of the file at path, in a directory that exists.
func (o *Owner) WriteFile(path string, data []byte) error {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err == nil {
		defer dir.Close()
		err = o.writeFile(dir, filepath.Base(path), data)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, reason(err))
	}
	return nil
}

func (o *Owner) take(file *os.File) error {
	if o == nil {
		return nil
	}
	return file.Chown(o.UID, o.GID)
}

// makeAll opens a directory, after making it and its parents. It returns the paths of new directories.
func (o *Owner) makeAll(path string) (dir *os.Root, made []string, err error) {
	path = filepath.Clean(path)
	parent := filepath.Dir(path)
	if dir, err = os.OpenRoot(path); !errors.Is(err, fs.ErrNotExist) || parent == path {
		return dir, nil, err
	}
	above, made, err := o.makeAll(parent)
	if err != nil {
		return nil, made, err
	}
	defer above.Close()
	dir, err = o.mkdir(above, filepath.Base(path))
	if errors.Is(err, fs.ErrExist) { // another process made it
		dir, err = above.OpenRoot(filepath.Base(path))
	} else if err == nil {
		made = append(made, path)
	}
	return dir, made, err
}

func (o *Owner) mkdir(in *os.Root, name string) (*os.Root, error) {
	if err := in.Mkdir(name, 0o755); err != nil {
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

func (o *Owner) writeFile(in *os.Root, name string, data []byte) error {
	temp := hidden(name)
	file, err := in.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if err = o.take(file); err == nil {
		_, err = file.Write(data)
	}
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = in.Rename(temp, name)
	}
	if err != nil {
		_ = in.Remove(temp)
	}
	return err
}

// hidden returns a name for a file that is not complete.
func hidden(name string) string { return "." + name + "." + strconv.FormatUint(rand.Uint64(), 36) }
