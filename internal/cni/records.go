// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// records is the directory of a network's records. Each is locked by the process
// that works on its attachment; the kernel frees the lock when that ends.
type records struct{ dir string }

// Names: of the directories of records, and the end of those of records.
const (
	recordsName  = "attachments"
	recordSuffix = ".record"
)

func (s records) path(o Owner) string {
	return filepath.Join(s.dir, o.ContainerID+"@"+o.IfName+recordSuffix)
}

// open locks the record of an attachment, and reads it. Where there is none the
// record is empty, and its file is made if create is set; otherwise the error
// matches fs.ErrNotExist.
func (s records) open(o Owner, create bool) (*Record, error) {
	flags := os.O_RDWR | os.O_APPEND
	if create {
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return nil, fmt.Errorf("record %s: %w", describe(o), err)
		}
		flags |= os.O_CREATE
	}
	for {
		file, err := os.OpenFile(s.path(o), flags, 0o600)
		if err != nil {
			return nil, fmt.Errorf("record %s: %w", describe(o), err)
		}
		current, err := lockFile(file, unix.LOCK_EX)
		if err == nil && current {
			return readRecord(file, o)
		}
		_ = file.Close()
		if err != nil {
			return nil, fmt.Errorf("lock record of %s: %w", describe(o), err)
		}
	}
}

// lockFile takes a file's lock. current is false if the file has been removed
// meanwhile.
func lockFile(file *os.File, how int) (current bool, err error) {
	for {
		if err = unix.Flock(int(file.Fd()), how); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return false, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return false, err
	}
	return stat.Nlink > 0, nil
}

// readRecord reads a record that is locked. One that can't be read tells nothing.
func readRecord(file *os.File, o Owner) (*Record, error) {
	data, err := io.ReadAll(file)
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("read record of %s: %w", describe(o), err)
	}
	r, ok := parseRecord(data)
	if !ok {
		r = Record{}
	}
	r.Owner, r.file = o, file
	return &r, nil
}

// recordsLike reads the records of all networks whose files match the pattern, but for
// the suffix, by their paths, without locks. One that can't be made out is left out.
// An error is of those that can't be read.
func (p *Plugin) recordsLike(pattern string) (map[string]Record, error) {
	paths, err := filepath.Glob(filepath.Join(p.runRoot(), "*", recordsName, pattern+recordSuffix))
	if err != nil {
		return nil, err
	}
	out := make(map[string]Record)
	var errs []error
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		if r, ok := parseRecord(data); ok && err == nil {
			out[path] = r
		}
	}
	return out, errors.Join(errs...)
}

// remove deletes the record, which ends the attachment.
func (r *Record) remove() error {
	if err := os.Remove(r.file.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record of %s: %w", describe(r.Owner), err)
	}
	return nil
}

// close gives the lock up.
func (r *Record) close() { _ = r.file.Close() }

// owners lists the attachments that have a record.
func (s records) owners() ([]Owner, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list attachments: %w", err)
	}
	var out []Owner
	for _, entry := range entries {
		name, isRecord := strings.CutSuffix(entry.Name(), recordSuffix)
		id, ifname, ok := strings.Cut(name, "@") // no container's ID has one
		if isRecord && ok {
			out = append(out, Owner{ContainerID: id, IfName: ifname})
		}
	}
	return out, nil
}
