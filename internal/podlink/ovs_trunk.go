// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// addMissingPort adds a port to a bridge unless it is there. One of another bridge
// is an error that matches fs.ErrExist.
func (s ovsSwitch) addMissingPort(bridge ovsBridge, device ovsdbRow) error {
	name, _ := device["name"].(string)
	port, err := s.port(name)
	if errors.Is(err, fs.ErrNotExist) {
		return s.addPort(bridge, device)
	}
	if err != nil {
		return err
	}
	if !slices.Contains(bridge.Ports, port.UUID.first()) {
		return fmt.Errorf("port %q of Open vSwitch is on another bridge than %q: %w", name, bridge.Name, fs.ErrExist)
	}
	return s.verify(name)
}

// ovsPort is the VXLAN as a port of Open vSwitch.
func (v VXLAN) ovsPort() ovsdbRow {
	return ovsdbRow{"name": VXLANDevice, "type": "vxlan", "options": ovsdbMap{
		"remote_ip": v.Remote.String(), "local_ip": v.Local.String(), "key": fmt.Sprint(v.ID),
	}}
}
