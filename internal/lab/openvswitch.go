// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"mustang/internal/podlink"
)

// addSwitch starts the host's own Open vSwitch. Its two processes run inside the
// host, which is how they are found and ended when the lab is taken down.
func (l *Lab) addSwitch(network *podlink.Network) error {
	s, err := podlink.StartOpenVSwitch(network.Host, l.store.switchDir(l.Options.Name))
	if err != nil {
		return err
	}
	network.OVSDB = s.Socket()
	l.ovsDatapath = s.Datapath()
	return nil
}

// OVSDatapath is the kind of the lab's Open vSwitch datapath:
// podlink.OVSKernel or podlink.OVSUserSpace; empty if it has no Open vSwitch.
func (l *Lab) OVSDatapath() string { return l.ovsDatapath }
