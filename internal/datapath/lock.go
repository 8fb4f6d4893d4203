// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// lock waits until no other process or goroutine has the lock of root, and takes it. The kernel frees it when a process
// dies.
func lock(root string) (unlock func(), err error) {
	for {
		dir, err := os.Open(root)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if err := flock(dir); err != nil {
			_ = dir.Close()
			return nil, fmt.Errorf("lock %q: %w", root, err)
		}
		// Remove may have deleted the directory while we waited, and Open may have made another.
		if current, err := isCurrent(dir, root); err != nil || current {
			if err != nil {
				_ = dir.Close()
				return nil, fmt.Errorf("lock: %w", err)
			}
			return func() { _ = dir.Close() }, nil
		}
		_ = dir.Close()
	}
}

func flock(dir *os.File) error {
	for {
		if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func isCurrent(dir *os.File, path string) (bool, error) {
	opened, err := dir.Stat()
	if err != nil {
		return false, err
	}
	now, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	return os.SameFile(opened, now), nil
}

// Lock keeps all other users of the root from changing it until unlock. Every method that changes or lists services or
// endpoints takes it itself, so a caller that holds it must call none of them. It opens the tables too: methods that need
// none take the lock alone.
func (d *Datapath) Lock() (unlock func(), err error) {
	if unlock, err = lock(d.layout.root); err != nil {
		return nil, err
	}
	if err := d.openTables(nil); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}
