// SPDX-License-Identifier: Apache-2.0

package linkinfo

import (
	"encoding/json"
	"io"
)

// schema is the version of the JSON documents.
const schema = 1

// document is the JSON of one namespace.
type document struct {
	Schema int `json:"schema"`
	namespaceJSON
}

// allDocument is the JSON of several namespaces.
type allDocument struct {
	Schema     int             `json:"schema"`
	Namespaces []namespaceJSON `json:"namespaces"`
}

type namespaceJSON struct {
	Namespace infoJSON   `json:"namespace"`
	Links     []linkJSON `json:"links"`
}

// infoJSON is a network namespace. Name is its best known name. The other fields are
// omitted where they are unknown.
type infoJSON struct {
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
	AltNames  []string       `json:"altnames,omitempty"`
	Up        bool           `json:"up"`
	OperState string         `json:"operstate"`
	Carrier   bool           `json:"carrier"`
	MTU       int            `json:"mtu"`
	MAC       string         `json:"mac,omitempty"`
	Addresses []string       `json:"addresses"`
	Master    string         `json:"master,omitempty"`
	Peer      *peerJSON      `json:"peer,omitempty"`
	Parent    *peerJSON      `json:"parent,omitempty"`
	Children  []peerJSON     `json:"children,omitempty"` // in other namespaces
	Settings  map[string]any `json:"settings,omitempty"`
	Port      map[string]any `json:"port,omitempty"`

	// SpeedMbit is -1 if unknown, null if the driver reports none.
	SpeedMbit   *int            `json:"speed_mbit"`
	Duplex      string          `json:"duplex,omitempty"`
	Driver      string          `json:"driver,omitempty"`
	Offloads    map[string]bool `json:"offloads"`
	Qdisc       string          `json:"qdisc"`
	TxQueues    int             `json:"tx_queues"`
	RxQueues    int             `json:"rx_queues"`
	QueueLength int             `json:"queue_length"`
	GSOMaxSize  int             `json:"gso_max_size"`
	Programs    []Program       `json:"programs"`
}

type peerJSON struct {
	Name      string    `json:"name,omitempty"`
	Index     int       `json:"index"`
	Kind      string    `json:"kind,omitempty"`
	Mode      string    `json:"mode,omitempty"`
	Master    string    `json:"master,omitempty"`
	Namespace *infoJSON `json:"namespace,omitempty"` // omitted for the same namespace
}

// WriteJSON writes the links of one namespace as an indented JSON document.
func WriteJSON(w io.Writer, i Inventory) error {
	return writeDocument(w, document{schema, newNamespaceJSON(i)})
}

// WriteAllJSON writes the links of several namespaces as an indented JSON document.
func WriteAllJSON(w io.Writer, inventories []Inventory) error {
	out := allDocument{Schema: schema, Namespaces: []namespaceJSON{}}
	for _, i := range inventories {
		out.Namespaces = append(out.Namespaces, newNamespaceJSON(i))
	}
	return writeDocument(w, out)
}

func writeDocument(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(document)
}

func newNamespaceJSON(i Inventory) namespaceJSON {
	out := namespaceJSON{Namespace: newInfoJSON(i.Namespace), Links: []linkJSON{}}
	for _, l := range i.Links {
		out.Links = append(out.Links, newLinkJSON(l, i.Programs[l.Index]))
	}
	return out
}

func newInfoJSON(p NamespaceInfo) infoJSON {
	return infoJSON{Name: p.String(), Inode: p.Inode, PID: p.PID, Command: p.Command, Container: p.Container}
}

func newLinkJSON(l Link, programs []Program) linkJSON {
	out := linkJSON{
		Name: l.Name, Index: l.Index, Kind: l.Kind, Mode: l.Mode, Alias: l.Alias, AltNames: l.AltNames,
		Up: l.Up, OperState: l.OperState, Carrier: l.Carrier, MTU: l.MTU, MAC: l.MAC.String(), Addresses: []string{},
		Master: l.Master, Settings: settingsJSON(l.Settings), Port: settingsJSON(l.Port),
		Duplex: l.Hardware.Duplex, Driver: l.Hardware.Driver, Offloads: map[string]bool{}, Qdisc: l.Qdisc,
		TxQueues: l.TxQueues, RxQueues: l.RxQueues, QueueLength: l.QueueLength, GSOMaxSize: l.GSOMaxSize,
		Programs: append([]Program{}, programs...),
	}
	for _, address := range l.Addrs {
		out.Addresses = append(out.Addresses, address.String())
	}
	if l.Peer != nil {
		peer := newPeerJSON(*l.Peer)
		out.Peer = &peer
	}
	if l.Parent != nil {
		peer := newPeerJSON(*l.Parent)
		out.Parent = &peer
	}
	for _, child := range l.Children {
		out.Children = append(out.Children, newPeerJSON(child))
	}
	if speed := l.Hardware.Speed; speed != 0 {
		out.SpeedMbit = &speed
	}
	if l.Hardware.Offloads != nil {
		out.Offloads = l.Hardware.Offloads
	}
	return out
}

func newPeerJSON(e Peer) peerJSON {
	out := peerJSON{Name: e.Name, Index: e.Index, Kind: e.Kind, Mode: e.Mode, Master: e.Master}
	if e.Namespace != nil {
		info := newInfoJSON(*e.Namespace)
		out.Namespace = &info
	}
	return out
}

func settingsJSON(settings []Setting) map[string]any {
	out := map[string]any{}
	for _, s := range settings {
		out[s.Name] = s.Value
	}
	return out
}
