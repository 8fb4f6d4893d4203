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

// leaveQueues keeps Open vSwitch from removing queueing disciplines that others
// put on a port's device, which it otherwise does with each change of its
// configuration.
func (s ovsSwitch) leaveQueues(port string) error {
	row, err := s.port(port)
	if err != nil || row.QoS.first() != "" {
		return err
	}
	return s.apply(
		ovsdbOp{"op": "insert", "table": "QoS", "row": ovsdbRow{"type": "linux-noop", "external_ids": ovsOwner}, "uuid-name": "queues"},
		ovsdbOp{"op": "update", "table": "Port", "where": where(is("name", port)), "row": ovsdbRow{"qos": named("queues")}},
	)
}

// ovsPort is the VXLAN as a port of Open vSwitch.
func (v VXLAN) ovsPort() ovsdbRow {
	return ovsdbRow{"name": VXLANDevice, "type": "vxlan", "options": ovsdbMap{
		"remote_ip": v.Remote.String(), "local_ip": v.Local.String(), "key": fmt.Sprint(v.ID),
	}}
}
