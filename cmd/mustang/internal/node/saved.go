// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"mustang/internal/lock"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// savedFile is the path of a file with a set of services, in JSON of package manifest, that only root can read. At boot
// the services are restored from it.
type savedFile string

// read returns the services. The error matches os.ErrNotExist if nothing was saved.
func (f savedFile) read() ([]service.Service, error) {
	file, err := openRegular(string(f))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	set, err := manifest.Read(file, manifest.Options{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f, err)
	}
	return set.Services, nil
}

// replace writes services to a new file and syncs it, calls apply, and renames the file if apply returned no error. So
// a full disk is found before anything is applied, and readers see either the old or the new set. Only one process at a
// time does this: errors of lock.Take. After a kill in between, the same call repairs the state.
func (f savedFile) replace(ctx context.Context, services []service.Service, apply func() error) (err error) {
	path := string(f)
	if info, err := os.Stat(path); path == "" || strings.HasSuffix(path, "/") || err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("save services in %q: not the path of a regular file", path)
	}
	dir, fresh := filepath.Dir(path), filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := lock.Take(ctx, dir, nil)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	_ = os.Remove(fresh)   // whatever a killed process left
	defer os.Remove(fresh) // unless it has been renamed
	file, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(manifest.WriteJSON(file, services), file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := apply(); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync() // some file systems cannot
		_ = d.Close()
	}
	return nil
}
