// SPDX-License-Identifier: Apache-2.0

// Package ovs configures an Open vSwitch through its database (RFC 7047, tables as in ovs-vswitchd.conf.db(5)).
package ovs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// Datapaths, by the names that Open vSwitch has for them.
const (
	// Kernel is the datapath of the kernel (module openvswitch).
	Kernel = "system"
	// UserSpace is the datapath in ovs-vswitchd with packet sockets and TAP devices, many times slower.
	UserSpace = "netdev"
)

// CheckKernel returns an error if the kernel lacks its datapath. The request loads the datapath's module.
func CheckKernel(ns *netns.Namespace) error { return rtnl.In(ns).TryGenericFamily("ovs_datapath") }

// CheckUserSpace returns an error if ovs-vswitchd can't create the TAP devices that its user-space datapath needs.
func CheckUserSpace() error {
	const file = "/dev/net/tun"
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the user-space datapath of Open vSwitch needs TAP devices (module tun): open %s: %w", file, err)
	}
	return unix.Close(fd)
}

// Switch is a connection to the database of an Open vSwitch. It is for one goroutine. Changes return when ovs-vswitchd
// has applied them. After one has timed out, later changes do not wait, so that failed changes can be undone quickly.
type Switch struct {
	db   *database
	away bool // ovs-vswitchd has not answered
}

// Open connects to a database's unix socket.
func Open(socket string) (*Switch, error) {
	db, err := dial(socket)
	if err != nil {
		return nil, err
	}
	return &Switch{db: db}, nil
}

// Close closes the connection.
func (s *Switch) Close() { s.db.close() }

// BestDatapath returns Kernel if host and ovs-vswitchd have it, else UserSpace, with an error if it can't work.
func (s *Switch) BestDatapath(host *netns.Namespace) (string, error) {
	var rows []struct {
		Types set `json:"datapath_types"`
	}
	if err := s.db.find(databaseName, &rows); err != nil {
		return "", err
	}
	if len(rows) != 1 {
		return "", errNotInitialized
	}
	if slices.Contains(rows[0].Types, Kernel) && CheckKernel(host) == nil {
		return Kernel, nil
	}
	return UserSpace, CheckUserSpace()
}

var errNotInitialized = errors.New("the Open vSwitch database is not initialized")

func owner() stringMap         { return stringMap{"owner": "mustang"} }
func owned(ids stringMap) bool { return ids["owner"] == owner()["owner"] }

func (s *Switch) apply(change ...operation) error {
	results, err := s.db.transact(slices.Concat(change, []operation{
		{"op": "mutate", "table": databaseName, "where": where(), "mutations": []any{[]any{"next_cfg", "+=", 1}}},
		{"op": "select", "table": databaseName, "where": where(), "columns": []string{"next_cfg"}},
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
		return errNotInitialized
	}
	if s.away {
		return nil
	}
	if err := s.await(root[0].Number, int(applyTimeout.Milliseconds())); err != nil {
		s.away = true
		return fmt.Errorf("wait until ovs-vswitchd has applied a change: %w", err)
	}
	return nil
}

// await has the database wait, for some milliseconds, until ovs-vswitchd has applied the change of that number.
func (s *Switch) await(number, milliseconds int) error {
	_, err := s.db.transact(operation{
		"op": "wait", "timeout": milliseconds, "table": databaseName,
		"where":   where([]any{"cur_cfg", ">=", number}),
		"columns": []string{"cur_cfg"}, "until": "!=", "rows": []any{},
	})
	return err
}

// Bridge is a bridge with its own device.
type Bridge struct {
	Name     string
	Datapath string // Kernel or UserSpace
	Owned    bool   // true if AddBridge added the bridge

	uuid  string
	ports set
}

// DeviceKind returns the kernel's kind of the devices that Open vSwitch makes: the bridge's own and internal ports.
func (b Bridge) DeviceKind() string {
	if b.Datapath == UserSpace {
		return "tun"
	}
	return "openvswitch"
}

// Bridge returns the bridge of that name. The error matches fs.ErrNotExist if there is none.
func (s *Switch) Bridge(name string) (Bridge, error) {
	var rows []struct {
		UUID         set       `json:"_uuid"`
		DatapathType string    `json:"datapath_type"`
		Ports        set       `json:"ports"`
		ExternalIDs  stringMap `json:"external_ids"`
	}
	if err := s.db.find("Bridge", &rows, equal("name", name)); err != nil {
		return Bridge{}, err
	}
	if len(rows) == 0 {
		return Bridge{}, fmt.Errorf("bridge %q of Open vSwitch: %w", name, fs.ErrNotExist)
	}
	r := rows[0]
	return Bridge{
		Name: name, Datapath: cmp.Or(r.DatapathType, Kernel), Owned: owned(r.ExternalIDs),
		uuid: r.UUID.first(), ports: r.Ports,
	}, nil
}

// BridgeSpec is a bridge to add.
type BridgeSpec struct {
	Name     string
	Datapath string // Kernel or UserSpace
	MAC      string // of the bridge's own device
	MTU      int    // of the bridge's own device, in bytes
}

// AddBridge adds a bridge with its own device. It is a learning switch without an OpenFlow controller.
func (s *Switch) AddBridge(b BridgeSpec) error {
	bridge := row{
		"name": b.Name, "datapath_type": b.Datapath, "fail_mode": "standalone", "ports": named("port"),
		"other_config": stringMap{"hwaddr": b.MAC}, "external_ids": owner(),
	}
	err := s.apply(slices.Concat(
		insertPort(row{"name": b.Name, "type": "internal", "mtu_request": b.MTU}),
		[]operation{
			{"op": "insert", "table": "Bridge", "row": bridge, "uuid-name": "bridge"},
			{"op": "mutate", "table": databaseName, "where": where(), "mutations": []any{[]any{"bridges", "insert", named(
				"bridge")}}},
		})...)
	if err != nil {
		return err
	}
	return s.verify(b.Name)
}

// DeleteBridge deletes a bridge with its ports.
func (s *Switch) DeleteBridge(b Bridge) error {
	return s.apply(operation{
		"op": "mutate", "table": databaseName, "where": where(),
		"mutations": []any{[]any{"bridges", "delete", uuid(b.uuid)}},
	})
}

// Port is a port to add, with one device of the same name.
type Port struct {
	Name string
	// Type is empty for a device that exists, "internal" for one of Open vSwitch, or a tunnel's type, with its Options.
	Type    string
	Options map[string]string
}

func insertPort(device row) []operation {
	return []operation{
		{"op": "insert", "table": "Interface", "row": device, "uuid-name": "device"},
		{
			"op": "insert", "table": "Port", "uuid-name": "port",
			"row": row{"name": device["name"], "interfaces": named("device"), "external_ids": owner()},
		},
	}
}

// AddPort adds a port to a bridge. The error matches fs.ErrExist if the name is taken. A failed AddPort leaves no port.
func (s *Switch) AddPort(b Bridge, p Port) error {
	switch _, found, err := s.port(p.Name); {
	case err != nil:
		return err
	case found:
		return fmt.Errorf("port %q of Open vSwitch: %w", p.Name, fs.ErrExist)
	}
	device := row{"name": p.Name, "type": p.Type}
	if len(p.Options) > 0 {
		device["options"] = stringMap(p.Options)
	}
	err := s.apply(append(insertPort(device), operation{
		"op": "mutate", "table": "Bridge", "where": where(equal("_uuid", uuid(b.uuid))),
		"mutations": []any{[]any{"ports", "insert", named("port")}},
	})...)
	if err == nil {
		err = s.verify(p.Name)
	}
	if err != nil {
		_, undo := s.DeletePort(p.Name)
		return errors.Join(err, undo)
	}
	return nil
}

// EnsurePort adds a port unless the bridge has one of that name. The error matches fs.ErrExist if another bridge has.
func (s *Switch) EnsurePort(b Bridge, p Port) error {
	port, found, err := s.port(p.Name)
	switch {
	case err != nil:
		return err
	case !found:
		return s.AddPort(b, p)
	case !slices.Contains(b.ports, port.UUID.first()):
		return fmt.Errorf("port %q of Open vSwitch is not on bridge %q: %w", p.Name, b.Name, fs.ErrExist)
	}
	return s.verify(p.Name)
}

// DeletePort deletes the port of that name from its bridge, and reports whether it existed and ovs-vswitchd has
// deleted it. Otherwise ovs-vswitchd deletes the device later. A port that AddPort did not add is an error.
func (s *Switch) DeletePort(name string) (deleted bool, err error) {
	port, found, err := s.port(name)
	if err != nil || !found {
		return false, err
	}
	if !owned(port.ExternalIDs) {
		return false, fmt.Errorf("port %q of Open vSwitch is not ours", name)
	}
	id := uuid(port.UUID.first())
	err = s.apply(operation{
		"op": "mutate", "table": "Bridge", "where": where([]any{"ports", "includes", id}),
		"mutations": []any{[]any{"ports", "delete", id}},
	})
	if s.away {
		return false, nil
	}
	return true, err
}

// CheckPort returns the deviation of the port of that name from a working one of the bridge, or an empty string.
func (s *Switch) CheckPort(b Bridge, name string) (deviation string, err error) {
	port, found, err := s.port(name)
	if err != nil {
		return "", err
	}
	if !found {
		return fmt.Sprintf("port %q is missing in the database of Open vSwitch", name), nil
	}
	if b.Name != "" && !slices.Contains(b.ports, port.UUID.first()) {
		return fmt.Sprintf("port %q of Open vSwitch is not on bridge %q", name, b.Name), nil
	}
	problem, err := s.problem(name)
	if problem == "" {
		return "", err
	}
	return fmt.Sprintf("port %q of Open vSwitch: %s", name, problem), nil
}

type portRow struct {
	UUID        set       `json:"_uuid"`
	ExternalIDs stringMap `json:"external_ids"`
}

func (s *Switch) port(name string) (_ portRow, found bool, err error) {
	var rows []portRow
	if err := s.db.find("Port", &rows, equal("name", name)); err != nil || len(rows) == 0 {
		return portRow{}, false, err
	}
	return rows[0], true, nil
}

func (s *Switch) verify(name string) error {
	problem, err := s.problem(name)
	if err == nil && problem != "" {
		err = fmt.Errorf("add device %q to Open vSwitch: %s", name, problem)
	}
	return err
}

// problem is the reason for which Open vSwitch does not use a device, or empty.
func (s *Switch) problem(name string) (string, error) {
	var rows []struct {
		Error  set `json:"error"`
		OFPort set `json:"ofport"` // its number in the datapath; none or -1 without one
	}
	if err := s.db.find("Interface", &rows, equal("name", name)); err != nil {
		return "", err
	}
	if len(rows) == 0 {
		return "the database lacks its device", nil
	}
	if text := rows[0].Error.first(); text != "" {
		return text, nil
	}
	if number := rows[0].OFPort.first(); number == "" || number == "-1" {
		return "it is in no datapath (see the log of ovs-vswitchd)", nil
	}
	return "", nil
}
