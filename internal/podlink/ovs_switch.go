// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// ovsOwner marks the rows that are ours, in their column external_ids.
var ovsOwner = ovsdbMap{"owner": "mustang"}

// ovsSwitch is an Open vSwitch, which is configured by its database.
type ovsSwitch struct{ *ovsdb }

// openSwitch connects to the database of a network's Open vSwitch.
func openSwitch(network Network) (ovsSwitch, error) {
	if network.OVSDB == "" {
		return ovsSwitch{}, errors.New("the network has no Open vSwitch")
	}
	db, err := dialOVSDB(network.OVSDB)
	return ovsSwitch{db}, err
}

// ovsBridge is a row of table Bridge.
type ovsBridge struct {
	UUID         ovsdbSet `json:"_uuid"`
	Name         string   `json:"name"`
	DatapathType string   `json:"datapath_type"`
	FailMode     ovsdbSet `json:"fail_mode"`
	Ports        ovsdbSet `json:"ports"`
	ExternalIDs  ovsdbMap `json:"external_ids"`
}

// ovsPort is a row of table Port.
type ovsPort struct {
	UUID        ovsdbSet `json:"_uuid"`
	ExternalIDs ovsdbMap `json:"external_ids"`
}

// ovsInterface is a row of table Interface, the device of a port.
type ovsInterface struct {
	Type   string   `json:"type"` // "" or "system" for a device that is there without Open vSwitch
	Error  ovsdbSet `json:"error"`
	OFPort ovsdbSet `json:"ofport"` // its number in the switch; none or -1 if it is in none
}

// problem says why Open vSwitch does not use a device; or nil.
func (i ovsInterface) problem() error {
	if text := i.Error.first(); text != "" {
		return errors.New(text)
	}
	if number := i.OFPort.first(); number == "" || number == "-1" {
		return errors.New("it is in no datapath (the log of ovs-vswitchd says why)")
	}
	return nil
}

// ours reports whether a row is marked as ours.
func ours(ids ovsdbMap) bool { return ids["owner"] == ovsOwner["owner"] }

// apply makes a change and waits until ovs-vswitchd has carried it out.
func (s ovsSwitch) apply(change ...ovsdbOp) error {
	results, err := s.transact(slices.Concat(change, []ovsdbOp{
		{"op": "mutate", "table": ovsdbName, "where": where(), "mutations": []any{[]any{"next_cfg", "+=", 1}}},
		{"op": "select", "table": ovsdbName, "where": where(), "columns": []string{"next_cfg"}},
	})...)
	if err != nil {
		return err
	}
	var root []struct {
		Number int `json:"next_cfg"`
	}
	if err := results[len(results)-1].read(&root); err != nil {
		return err
	}
	if len(root) != 1 {
		return errors.New("the database of Open vSwitch is not initialised")
	}
	if err := s.await(root[0].Number, int(ovsdbTimeout.Milliseconds())); err != nil {
		return fmt.Errorf("wait until ovs-vswitchd has applied a change: %w", err)
	}
	return nil
}

// await waits until ovs-vswitchd has carried out the change of that number, for
// at most so many milliseconds. The database does the waiting.
func (s ovsSwitch) await(number, milliseconds int) error {
	_, err := s.transact(ovsdbOp{
		"op": "wait", "timeout": milliseconds, "table": ovsdbName,
		"where":   where([]any{"cur_cfg", ">=", number}),
		"columns": []string{"cur_cfg"}, "until": "!=", "rows": []any{},
	})
	return err
}

// bridge returns the bridge of that name; the error matches fs.ErrNotExist if
// there is none.
func (s ovsSwitch) bridge(name string) (ovsBridge, error) {
	var rows []ovsBridge
	if err := s.find("Bridge", &rows, is("name", name)); err != nil {
		return ovsBridge{}, err
	}
	if len(rows) == 0 {
		return ovsBridge{}, fmt.Errorf("bridge %q of Open vSwitch: %w", name, fs.ErrNotExist)
	}
	return rows[0], nil
}

// addBridge adds a bridge with its own device, as a switch that learns where to
// send (it needs no OpenFlow controller).
func (s ovsSwitch) addBridge(name, datapath, mac string, mtu int) error {
	bridge := ovsdbRow{
		"name": name, "datapath_type": datapath, "fail_mode": "standalone", "ports": named("port"),
		"other_config": ovsdbMap{"hwaddr": mac}, "external_ids": ovsOwner,
	}
	err := s.apply(slices.Concat(
		insertPort(ovsdbRow{"name": name, "type": "internal", "mtu_request": mtu}),
		[]ovsdbOp{
			{"op": "insert", "table": "Bridge", "row": bridge, "uuid-name": "bridge"},
			{"op": "mutate", "table": ovsdbName, "where": where(), "mutations": []any{[]any{"bridges", "insert", named("bridge")}}},
		})...)
	if err != nil {
		return err
	}
	return s.verify(name)
}

// repair lets a bridge of ours work without a controller again.
func (s ovsSwitch) repair(bridge ovsBridge) error {
	if !ours(bridge.ExternalIDs) || !bridge.secure() {
		return nil
	}
	return s.apply(ovsdbOp{
		"op": "update", "table": "Bridge", "where": where(is("name", bridge.Name)), "row": ovsdbRow{"fail_mode": "standalone"},
	})
}

// secure reports whether a bridge passes nothing on its own.
func (b ovsBridge) secure() bool { return b.FailMode.first() == "secure" }

// deleteBridge deletes a bridge with its ports.
func (s ovsSwitch) deleteBridge(bridge ovsBridge) error {
	return s.apply(ovsdbOp{
		"op": "mutate", "table": ovsdbName, "where": where(),
		"mutations": []any{[]any{"bridges", "delete", uuid(bridge.UUID.first())}},
	})
}

// ovsdbRow is a row to insert.
type ovsdbRow map[string]any

// insertPort inserts a port named "port" in the transaction, of one device.
func insertPort(device ovsdbRow) []ovsdbOp {
	return []ovsdbOp{
		{"op": "insert", "table": "Interface", "row": device, "uuid-name": "device"},
		{
			"op": "insert", "table": "Port", "uuid-name": "port",
			"row": ovsdbRow{"name": device["name"], "interfaces": named("device"), "external_ids": ovsOwner},
		},
	}
}

// addPort adds a port to a bridge. If it fails there is none.
func (s ovsSwitch) addPort(bridge ovsBridge, device ovsdbRow) error {
	name, _ := device["name"].(string)
	switch _, err := s.port(name); {
	case err == nil:
		return fmt.Errorf("port %q of Open vSwitch: %w", name, fs.ErrExist)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	err := s.apply(append(insertPort(device), ovsdbOp{
		"op": "mutate", "table": "Bridge", "where": where(is("_uuid", uuid(bridge.UUID.first()))),
		"mutations": []any{[]any{"ports", "insert", named("port")}},
	})...)
	if err == nil {
		err = s.verify(name)
	}
	if err != nil {
		return errors.Join(err, s.deletePort(name))
	}
	return nil
}

// port returns the port of that name; the error matches fs.ErrNotExist if there
// is none.
func (s ovsSwitch) port(name string) (ovsPort, error) {
	var rows []ovsPort
	if err := s.find("Port", &rows, is("name", name)); err != nil {
		return ovsPort{}, err
	}
	if len(rows) == 0 {
		return ovsPort{}, fmt.Errorf("port %q of Open vSwitch: %w", name, fs.ErrNotExist)
	}
	return rows[0], nil
}

// deletePort deletes a port from whichever bridge it is on, if there is one. If
// it is not ours that is an error.
func (s ovsSwitch) deletePort(name string) error {
	port, err := s.port(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !ours(port.ExternalIDs) {
		return fmt.Errorf("port %q of Open vSwitch is not ours", name)
	}
	id := uuid(port.UUID.first())
	return s.apply(ovsdbOp{
		"op": "mutate", "table": "Bridge", "where": where([]any{"ports", "includes", id}),
		"mutations": []any{[]any{"ports", "delete", id}},
	})
}

// device returns the row of a device; found is false if there is none.
func (s ovsSwitch) device(name string) (_ ovsInterface, found bool, err error) {
	var rows []ovsInterface
	if err := s.find("Interface", &rows, is("name", name)); err != nil || len(rows) == 0 {
		return ovsInterface{}, false, err
	}
	return rows[0], true, nil
}

// verify is an error if a device that has been added is not in use.
func (s ovsSwitch) verify(name string) error {
	device, found, err := s.device(name)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("device %q has gone from the database of Open vSwitch", name)
	}
	if err := device.problem(); err != nil {
		return fmt.Errorf("device %q can't be used by Open vSwitch: %w", name, err)
	}
	return nil
}
