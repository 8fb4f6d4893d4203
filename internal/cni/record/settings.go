// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// settingsFile has the settings of the host that the first ADD has changed, as they were before.
const settingsFile = ".settings"

// heldFile is there while somebody besides attachments needs the settings that were changed.
const heldFile = ".settings-held"

// Setting is a sysctl, such as "net/ipv4/ip_forward", and its value.
type Setting struct{ Key, Value string }

// Settings returns the settings of the host to restore after the last attachment, in that order. A file that is damaged counts as none: pods
// can be deleted with it, and the host keeps its settings of now.
func (s Store) Settings() (settings []Setting, err error) {
	data, err := readRegular(filepath.Join(s.Root, settingsFile))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotRegular) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read settings of the host before: %w", err)
	}
	if json.Unmarshal(data, &settings) != nil {
		return nil, nil
	}
	return settings, nil
}

// AddSettings records settings before they are changed. Those that are recorded stay: they are older. The caller holds the
// lock of the host ports.
func (s Store) AddSettings(more []Setting) error {
	settings, err := s.Settings()
	if err != nil {
		return err
	}
	for _, m := range more {
		if !slices.ContainsFunc(settings, func(have Setting) bool { return have.Key == m.Key }) {
			settings = append(settings, m)
		}
	}
	data, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	return replace(filepath.Join(s.Root, settingsFile), data)
}

// RemoveSettings forgets the settings, which are restored.
func (s Store) RemoveSettings() error { return os.Remove(filepath.Join(s.Root, settingsFile)) }

// HoldSettings keeps the settings from being restored after the last attachment, until ReleaseSettings.
func (s Store) HoldSettings() error {
	if err := os.MkdirAll(s.Root, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.Root, heldFile), nil, 0o600)
}

// ReleaseSettings undoes HoldSettings.
func (s Store) ReleaseSettings() error {
	err := os.Remove(filepath.Join(s.Root, heldFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Empty reports whether no network has an attachment, and nobody else holds the settings of the host.
func (s Store) Empty() bool {
	if _, err := os.Lstat(filepath.Join(s.Root, heldFile)); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	for _, name := range s.Networks() {
		if owners, err := s.Owners(name); err != nil || len(owners) > 0 {
			return false
		}
	}
	return true
}
