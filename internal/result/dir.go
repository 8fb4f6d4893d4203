// SPDX-License-Identifier: Apache-2.0

package result

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// mostPerSecond bounds the runs that start in one second in one directory.
const mostPerSecond = 1000

// Dir is the directory of a run that is under way. A file in it appears whole or not at all, also when the process is
// killed.
type Dir struct {
	// Path is the directory's path, and Started the time that it is named by.
	Path    string
	Started time.Time

	name        string
	parent, run *os.Root
	owner       *Owner
	made        []string // directories above that were made for it, the innermost last
	filled      float64
	// written is true if the directory has a result, and latest if it is the last one.
	written, latest bool
}

// CreateDir makes a directory for a run that starts now, and its parents as needed. The new directories belong to
// the owner; nil is this process. Links below the parent that lead out of it are not followed.
func CreateDir(parent string, started time.Time, owner *Owner) (d *Dir, err error) {
	d = &Dir{Started: started.UTC().Truncate(time.Second), owner: owner}
	defer func() {
		if err != nil {
			err = fmt.Errorf("output directory: %w", errors.Join(err, d.Close()))
		}
	}()
	if d.parent, d.made, err = owner.makeAll(parent); err != nil {
		return d, err
	}
	if info, err := os.Lstat(filepath.Join(parent, LatestName)); err == nil && info.Mode().Type() != fs.ModeSymlink {
		return d, fmt.Errorf("%s is not a symbolic link to a run: remove it", filepath.Join(parent, LatestName))
	}
	for n := 1; n <= mostPerSecond; n++ {
		d.name = d.Started.Format("20060102T150405Z")
		if n > 1 {
			d.name = fmt.Sprintf("%s-%d", d.name, n)
		}
		if d.run, err = owner.mkdir(d.parent, d.name); !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	d.Path = filepath.Join(parent, d.name)
	return d, err
}

// MakeDir makes a directory and its parents, and is content with one that exists.
func (o *Owner) MakeDir(path string) error {
	dir, _, err := o.makeAll(path)
	if err != nil {
		return fmt.Errorf("output directory: %w", err)
	}
	return dir.Close()
}

// Write checks f and makes it the run's result. Readers see either the previous result or this one. Write skips a
// file without rows. The first file with samples makes [LatestName] name the run.
func (d *Dir) Write(f File) error {
	if len(f.Rows) == 0 {
		return nil
	}
	data, err := Marshal(f)
	d.filled = filledBy(data)
	if err == nil {
		err = d.owner.writeFile(d.run, FileName, data)
	}
	if err != nil {
		return fmt.Errorf("write results %s: %w", filepath.Join(d.Path, FileName), err)
	}
	d.written = true
	if !d.latest && slices.ContainsFunc(f.Rows, func(r Row) bool { return len(r.Samples) > 0 }) {
		if err := relink(d.parent, LatestName, d.name); err != nil {
			return fmt.Errorf("write %s: %w", filepath.Join(filepath.Dir(d.Path), LatestName), err)
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
		if !d.written {
			if err = d.parent.Remove(d.name); errors.Is(err, unix.ENOTEMPTY) {
				err = nil
			}
		}
		err = errors.Join(err, d.run.Close())
	}
	for _, path := range slices.Backward(d.made) {
		if d.written || os.Remove(path) != nil {
			break // another run has used it since
		}
	}
	d.made = nil
	if d.parent != nil {
		err = errors.Join(err, d.parent.Close())
	}
	return err
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

// FindFile returns the result file for a path: a result file, the directory of a run, or the parent directory of the
// latest run.
func FindFile(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("read results %s: %w", path, reason(err))
	}
	if !info.IsDir() {
		return path, nil
	}
	dir := path
	run, err := os.Readlink(filepath.Join(path, LatestName))
	switch {
	case err == nil && filepath.IsAbs(run):
		dir = run
	case err == nil:
		dir = filepath.Join(path, run)
	}
	file := filepath.Join(dir, FileName)
	info, err = os.Stat(file)
	switch {
	case err != nil && dir != path:
		return "", fmt.Errorf("read results %s: %s names %s: %w", path, LatestName, run, reason(err))
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("read results %s: neither %s nor %s is in it: %w", path, FileName, LatestName, fs.ErrNotExist)
	case err != nil:
		return "", fmt.Errorf("read results %s: %w", file, reason(err))
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("read results %s: not a file", file)
	}
	return file, nil
}

// reason returns an error without the name of the file.
func reason(err error) error {
	var ofPath *fs.PathError
	var ofLink *os.LinkError
	switch {
	case errors.As(err, &ofPath):
		return ofPath.Err
	case errors.As(err, &ofLink):
		return ofLink.Err
	}
	return err
}
