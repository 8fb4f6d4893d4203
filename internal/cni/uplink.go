// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"mustang/internal/datapath"
)

// Uplinks are the plugin's: nothing else adds any. Each has a directory with a file for each attachment whose ports are
// reached by it, and goes with the last.

// uplinksName is the directory of those directories. No network has a name that begins with a dot.
const uplinksName = ".uplinks"

// claims is the directory of an uplink's.
func (p *Plugin) claims(u datapath.Uplink) string {
	return filepath.Join(p.runRoot(), uplinksName, fmt.Sprintf("%d-%d", u.Host, u.IfIndex))
}

// claim is the name of the attachment's file.
func (a *attachment) claim() string {
	return a.config.Name + "@" + a.record.Owner.ContainerID + "@" + a.record.Owner.IfName
}

// openUplink has programs translate what comes in by the parent, if there is one. The
// caller has the lock of ports.
func (a *attachment) openUplink() error {
	parent, err := a.parent()
	if err != nil || parent == "" {
		return err
	}
	u, err := datapath.FindUplink(a.host, parent)
	if err != nil {
		return err
	}
	dir := a.plugin.claims(u)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, a.claim()), nil, 0o600); err != nil {
		return err
	}
	_, err = a.dp.AddUplink(a.host, parent)
	return err
}

// parent is the host's device to the outside, empty if it has none.
func (a *attachment) parent() (string, error) {
	if a.config.Parent != "" {
		return a.config.Parent, nil
	}
	device, err := a.host.DefaultDevice()
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return device, err
}

// checkUplink looks for the programs on the parent.
func (a *attachment) checkUplink() error {
	parent, err := a.parent()
	if err != nil || parent == "" {
		return err
	}
	return a.dp.CheckUplink(a.host, parent)
}

// closeUplinks takes the programs from those of the host's devices by which no pod's
// ports are reached any more. The caller has the lock of ports.
func (a *attachment) closeUplinks() error {
	if err := a.unclaimUplinks(); err != nil {
		return err
	}
	host, err := a.host.Cookie()
	if err != nil {
		return err
	}
	uplinks, err := a.dp.Uplinks()
	if err != nil {
		return err
	}
	for _, u := range uplinks {
		if _, err := os.Stat(a.plugin.claims(u)); u.Host != host || err == nil {
			continue
		}
		if err := a.dp.DeleteUplink(u); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// unclaimUplinks removes the attachment's files, and directories that have none.
func (a *attachment) unclaimUplinks() error {
	dirs, err := filepath.Glob(filepath.Join(a.plugin.runRoot(), uplinksName, "*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := os.Remove(filepath.Join(dir, a.claim())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		_ = os.Remove(dir) // where others' are, it stays
	}
	return nil
}
