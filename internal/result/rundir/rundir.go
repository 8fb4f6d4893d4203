// SPDX-License-Identifier: Apache-2.0

// Package rundir keeps the files of runs. Each run has a directory of its own, named by
// its start, in a parent directory that they share; the symbolic link [Latest] beside
// them names the last one that has a result. A file appears whole or not at all, also
// when the process is killed.
//
// Under sudo, what the package creates belongs to the user who called it. Names are
// resolved only up to the parent directory: below, no symbolic link is followed.
package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/result"
)

// Names in a directory.
const (
	// Results is the result file in a run's directory.
	Results = "results.json"
	// Page is the report beside it.
	Page = "report.html"
	// Latest is the symbolic link in the parent directory.
	Latest = "latest"
)

// mostPerSecond bounds the runs that start in one second in one directory.
const mostPerSecond = 1000

// Dir is the directory of a run that is under way.
type Dir struct {
	// Path is the directory's path, and Started the time that it is named by.
	Path    string
	Started time.Time

	name        string
	parent, run folder
	owner       *Owner
	made        []string // directories above that were made for it, the innermost last
	filled      float64
	// written tells that there is a result, and latest that it is the last one.
	written, latest bool
}

// Create makes a directory for a run that starts now, and its parents as needed. An
// owner of nil is this process.
func Create(parent string, started time.Time, owner *Owner) (d *Dir, err error) {
	d = &Dir{Started: started.UTC().Truncate(time.Second), owner: owner}
	defer func() {
		if err != nil {
			err = fmt.Errorf("output directory: %w", errors.Join(err, d.Close()))
		}
	}()
	if d.parent, d.made, err = makeAll(parent, owner); err != nil {
		return d, err
	}
	if info, err := os.Lstat(filepath.Join(parent, Latest)); err == nil && info.Mode().Type() != fs.ModeSymlink {
		return d, fmt.Errorf("%s is not a symbolic link to a run: remove it", filepath.Join(parent, Latest))
	}
	for n := 1; n <= mostPerSecond; n++ {
		d.name = d.Started.Format("20060102T150405Z")
		if n > 1 {
			d.name = fmt.Sprintf("%s-%d", d.name, n)
		}
		if d.run, err = d.parent.mkdir(d.name, owner); !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	d.Path = filepath.Join(parent, d.name)
	return d, err
}

// Make makes a directory and its parents, and is content with one that exists.
func Make(path string, owner *Owner) error {
	dir, _, err := makeAll(path, owner)
	if err != nil {
		return fmt.Errorf("output directory: %w", err)
	}
	return dir.file.Close()
}

// Write checks f and makes it the run's result. Readers see the result before or this one.
// The first that holds samples makes [Latest] name the run.
func (d *Dir) Write(f result.File) error {
	path := filepath.Join(d.Path, Results)
	data, err := result.Marshal(f)
	d.filled = result.Filled(data)
	if err == nil {
		err = d.run.replace(Results, data, d.owner)
	}
	if err != nil {
		return fmt.Errorf("write results %s: %w", path, err)
	}
	d.written = true
	if !d.latest && slices.ContainsFunc(f.Rows, func(r result.Row) bool { return len(r.Samples) > 0 }) {
		if err := d.parent.relink(Latest, d.name, d.owner); err != nil {
			return fmt.Errorf("write %s: %w", filepath.Join(filepath.Dir(d.Path), Latest), err)
		}
		d.latest = true
	}
	return nil
}

// Filled returns how much of the limits of a result file the last one takes, see [result.Filled].
func (d *Dir) Filled() float64 { return d.filled }

// Close ends the run. Without a result it removes the directories that it made.
func (d *Dir) Close() error {
	if d.run.file != nil && !d.written {
		if err := d.parent.rmdir(d.name); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
			return fmt.Errorf("remove %s: %w", d.Path, err)
		}
	}
	for len(d.made) > 0 && !d.written {
		last := len(d.made) - 1
		if err := os.Remove(d.made[last]); err != nil {
			break // another run has used it since
		}
		d.made = d.made[:last]
	}
	return errors.Join(d.run.close(), d.parent.close())
}

// WriteFile makes data the content of the file at path, in a directory that exists.
func WriteFile(path string, data []byte, owner *Owner) error {
	file, err := os.Open(filepath.Dir(path))
	if err == nil {
		defer file.Close()
		err = folder{file, filepath.Dir(path)}.replace(filepath.Base(path), data, owner)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, reason(err))
	}
	return nil
}

// Find returns the result file that path stands for: itself, that of a run's directory, or
// that of the latest run in a parent directory.
func Find(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("read results %s: %w", path, reason(err))
	}
	if !info.IsDir() {
		return path, nil
	}
	dir := path
	run, err := os.Readlink(filepath.Join(path, Latest))
	switch {
	case err == nil && filepath.IsAbs(run):
		dir = run
	case err == nil:
		dir = filepath.Join(path, run)
	}
	file := filepath.Join(dir, Results)
	info, err = os.Stat(file)
	switch {
	case err != nil && dir != path:
		return "", fmt.Errorf("read results %s: %s names %s: %w", path, Latest, run, reason(err))
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("read results %s: neither %s nor %s is in it: %w", path, Results, Latest, fs.ErrNotExist)
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
	if errors.As(err, &ofPath) {
		return ofPath.Err
	}
	return err
}
