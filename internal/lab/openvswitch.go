// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"mustang/internal/nl"
	"mustang/internal/podlink"
)

// addSwitch starts an Open vSwitch of its own for a host. Its two processes run
// inside the host, which is how they are found and ended when the lab is taken
// down.
func (l *Lab) addSwitch(network *podlink.Network, place string) error {
	s, err := l.startSwitch(network.Host, place)
	if err != nil {
		return err
	}
	network.OVSDB = s.Socket()
	return nil
}

// startSwitch keeps all switches of the lab in one directory.
func (l *Lab) startSwitch(host *nl.Namespace, place string) (*podlink.OpenVSwitch, error) {
	dir := l.store.switchDir(l.Options.Name)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	s, err := podlink.StartOpenVSwitch(host, filepath.Join(dir, place))
	if err != nil {
		return nil, err
	}
	l.ovsDatapath = s.Datapath()
	return s, nil
}

// OVSDatapath is the kind of the lab's Open vSwitch datapath:
// podlink.OVSKernel or podlink.OVSUserSpace; empty if it has no Open vSwitch.
func (l *Lab) OVSDatapath() string { return l.ovsDatapath }
