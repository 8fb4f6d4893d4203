// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf"
)

// filesRoot has a directory for each datapath, since a BPF file system cannot store files. Both are gone after a
// boot. The directory's name is the number of a map: it is the same wherever the BPF file system is mounted, and
// other maps have other files.
const filesRoot = "/run/mustang/datapath"

// FilesDir returns the directory of the files that belong to the maps. It may not exist.
func (o *Objects) FilesDir() (string, error) { return filesOf(o.layout) }

func filesOf(l layout) (string, error) {
	m, err := ebpf.LoadPinnedMap(l.mapPin(tcMapPolicySettings), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return "", err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return "", err
	}
	id, _ := info.ID()
	return filepath.Join(filesRoot, strconv.Itoa(int(id))), nil
}

// MakeFilesDir makes the directory of FilesDir, readable only by root, and removes directories of maps that are gone.
func (o *Objects) MakeFilesDir() (string, error) {
	dir, err := o.FilesDir()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("create directory of files: %w", err)
	}
	entries, err := os.ReadDir(filesRoot)
	for _, entry := range entries {
		id, errID := strconv.ParseUint(entry.Name(), 10, 32)
		if errID != nil {
			continue
		}
		m, errMap := ebpf.NewMapFromID(ebpf.MapID(id))
		if errors.Is(errMap, os.ErrNotExist) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(filesRoot, entry.Name())))
		} else if errMap == nil {
			_ = m.Close()
		}
	}
	return dir, err
}
