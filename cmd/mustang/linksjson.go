// SPDX-License-Identifier: Apache-2.0

package main

import (
	"mustang/internal/datapath"
	"mustang/internal/nl"
)

// linksDocument is what links -o json prints for one namespace.
type linksDocument struct {
	Schema int `json:"schema"`
	namespaceJSON
}

// allLinksDocument is what links --all -o json prints.
type allLinksDocument struct {
	Schema     int             `json:"schema"`
	Namespaces []namespaceJSON `json:"namespaces"`
}

type namespaceJSON struct {
	Namespace placeJSON  `json:"namespace"`
	Links     []linkJSON `json:"links"`
}

// placeJSON is a network namespace. Name is the best that there is; the rest is
// there where it is known.
type placeJSON struct {
	Name      string `json:"name"`
	Inode     uint64 `json:"inode,omitempty"`
	PID       int    `json:"pid,omitempty"`
	Command   string `json:"command,omitempty"`
	Container string `json:"container,omitempty"`
}

type linkJSON struct {
	Name      string         `json:"name"`
	Index     int            `json:"index"`
	Kind      string         `json:"kind"`
	Mode      string         `json:"mode,omitempty"`
	Alias     string         `json:"alias,omitempty"`
	Up        bool           `json:"up"`
	OperState string         `json:"operstate"`
	Carrier   bool           `json:"carrier"`
	MTU       int            `json:"mtu"`
	MAC       string         `json:"mac,omitempty"`
	Addresses []string       `json:"addresses"`
	Master    string         `json:"master,omitempty"`
	Peer      *endJSON       `json:"peer,omitempty"`
	Parent    *endJSON       `json:"parent,omitempty"`
	Children  []endJSON      `json:"children,omitempty"` // in other namespaces
	Settings  map[string]any `json:"settings,omitempty"`
	Port      map[string]any `json:"port,omitempty"`

	// SpeedMbit is -1 if unknown, null if the device doesn't tell.
	SpeedMbit   *int            `json:"speed_mbit"`
	Duplex      string          `json:"duplex,omitempty"`
	Driver      string          `json:"driver,omitempty"`
	Offloads    map[string]bool `json:"offloads"`
	Qdisc       string          `json:"qdisc"`
	TxQueues    int             `json:"tx_queues"`
	RxQueues    int             `json:"rx_queues"`
	QueueLength int             `json:"queue_length"`
	GSOMaxSize  int             `json:"gso_max_size"`
	Programs    []programJSON   `json:"programs"`
}

type endJSON struct {
	Name      string     `json:"name,omitempty"`
	Index     int        `json:"index"`
	Kind      string     `json:"kind,omitempty"`
	Mode      string     `json:"mode,omitempty"`
	Master    string     `json:"master,omitempty"`
	Namespace *placeJSON `json:"namespace,omitempty"` // left out if it is the same one
}

type programJSON struct {
	Hook    string `json:"hook"`
	ID      uint32 `json:"id"`
	Name    string `json:"name"`
	Tag     string `json:"tag,omitempty"`
	LinkID  uint32 `json:"link_id,omitempty"`
	Mustang bool   `json:"mustang"`
}

func allLinksJSON(inventories []inventory) allLinksDocument {
	out := allLinksDocument{Schema: schema, Namespaces: []namespaceJSON{}}
	for _, i := range inventories {
		out.Namespaces = append(out.Namespaces, newNamespaceJSON(i))
	}
	return out
}

func newNamespaceJSON(i inventory) namespaceJSON {
	out := namespaceJSON{Namespace: newPlaceJSON(i.place), Links: []linkJSON{}}
	for _, l := range i.links {
		out.Links = append(out.Links, newLinkJSON(l, i.programs[l.Index]))
	}
	return out
}

func newPlaceJSON(p nl.Place) placeJSON {
	return placeJSON{Name: p.String(), Inode: p.Inode, PID: p.PID, Command: p.Command, Container: p.Container}
}

func newLinkJSON(l nl.Link, programs []datapath.AttachedProgram) linkJSON {
	out := linkJSON{
		Name: l.Name, Index: l.Index, Kind: l.Kind, Mode: l.Mode, Alias: l.Alias,
		Up: l.Up, OperState: l.OperState, Carrier: l.Carrier, MTU: l.MTU, MAC: l.MAC.String(), Addresses: []string{},
		Master: l.Master, Settings: settingsJSON(l.Settings), Port: settingsJSON(l.Port),
		Duplex: l.Hardware.Duplex, Driver: l.Hardware.Driver, Offloads: map[string]bool{}, Qdisc: l.Qdisc,
		TxQueues: l.TxQueues, RxQueues: l.RxQueues, QueueLength: l.QueueLength, GSOMaxSize: l.GSOMaxSize,
		Programs: []programJSON{},
	}
	for _, address := range l.Addrs {
		out.Addresses = append(out.Addresses, address.String())
	}
	if l.Peer != nil {
		end := newEndJSON(*l.Peer)
		out.Peer = &end
	}
	if l.Parent != nil {
		end := newEndJSON(*l.Parent)
		out.Parent = &end
	}
	for _, child := range l.Children {
		out.Children = append(out.Children, newEndJSON(child))
	}
	if speed := l.Hardware.Speed; speed != 0 {
		out.SpeedMbit = &speed
	}
	if l.Hardware.Offloads != nil {
		out.Offloads = l.Hardware.Offloads
	}
	for _, p := range programs {
		out.Programs = append(out.Programs, programJSON{p.Hook, p.ID, p.Name, p.Tag, p.LinkID, p.Mustang})
	}
	return out
}

func newEndJSON(e nl.End) endJSON {
	out := endJSON{Name: e.Name, Index: e.Index, Kind: e.Kind, Mode: e.Mode, Master: e.Master}
	if e.Place != nil {
		place := newPlaceJSON(*e.Place)
		out.Namespace = &place
	}
	return out
}

func settingsJSON(settings []nl.Setting) map[string]any {
	out := map[string]any{}
	for _, s := range settings {
		out[s.Name] = s.Value
	}
	return out
}
