// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// diskStatus reports that the directories of the network can't be written to.
func (p *Plugin) diskStatus(c Config) error {
	dirs := []string{p.records(c.Name).dir}
	if !c.Chained && c.IPAM.builtIn() {
		dirs = append(dirs, p.stateDir(c.Name))
	}
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, writable(dir))
	}
	return errors.Join(errs...)
}

// writable is an error if no file can be made in a directory, or the directory can't
// be. It makes a file that has no name, and so leaves none: one block is written, for
// disks that are full. Some file systems, like NFS, have no such files.
func writable(dir string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
		return writable(filepath.Dir(dir)) // ADD makes it there
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = unix.Access(dir, unix.W_OK|unix.X_OK)
	} else if err == nil {
		file := os.NewFile(uintptr(fd), dir)
		_, err = file.Write(make([]byte, os.Getpagesize()))
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return fmt.Errorf("write to %s: %w", dir, err)
	}
	return nil
}
