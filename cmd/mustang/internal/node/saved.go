// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"mustang/internal/lock"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// savedFile is the path of a file with a set of services, in JSON of package manifest, that only root can read. They are
// restored from it at boot.
type savedFile string

// read returns the services. The error matches os.ErrNotExist if nothing was saved.
func (f savedFile) read() ([]service.Service, error) {
	file, err := os.OpenFile(string(f), os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO without a writer would block
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file", f))
	}
	set, err := manifest.Read(file, manifest.Options{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f, err)
	}
	return set.Services, nil
}

// check returns an error if the path cannot be a regular file.
func (f savedFile) check() error {
	if f == "" || strings.HasSuffix(string(f), "/") {
		return fmt.Errorf("save services in %q: not the path of a file", f)
	}
	if info, err := os.Stat(string(f)); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("save services in %s: not a regular file", f)
	}
	return nil
}

// replace writes services to a new file and syncs it, calls apply, and renames the file if apply returned no error. So a full
// disk is found before anything is applied, and what is read is one set or the other, whole. One process at a time does
// so: errors of lock.Take. After a kill in between, the same call again repairs.
func (f savedFile) replace(ctx context.Context, services []service.Service, apply func() error) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	dir := filepath.Dir(string(f))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := lock.Take(ctx, dir, nil)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	fresh := filepath.Join(dir, "."+filepath.Base(string(f))+".new")
	defer func() {
		if err != nil {
			err = errors.Join(err, removeIfThere(fresh))
		}
	}()
	if err := writeServices(fresh, services); err != nil {
		return err
	}
	if err := apply(); err != nil {
		return err
	}
	if err := os.Rename(fresh, string(f)); err != nil {
		return err
	}
	return syncDir(dir)
}

// writeServices writes a file anew, whatever a killed process left of it.
func writeServices(path string, services []service.Service) (err error) {
	if err := removeIfThere(path); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := manifest.WriteJSON(file, services); err != nil {
		return err
	}
	return file.Sync()
}

func removeIfThere(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// syncDir makes a renamed file survive a crash of the machine.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil && !errors.Is(err, unix.EINVAL) { // some file systems cannot
		return err
	}
	return nil
}
