// SPDX-License-Identifier: Apache-2.0

package linkinfo

import (
	"encoding/json"
	"io"
	"net/netip"
)

// schema is the version of the JSON documents.
const schema = 1

// document is the JSON of one namespace.
type document struct {
	Schema int `json:"schema"`
	namespaceJSON
}

type namespaceJSON struct {
	Namespace NamespaceInfo `json:"namespace"`
	Links     []linkJSON    `json:"links"`
}

// linkJSON is a link whose fields have the forms of JSON.
type linkJSON struct {
	Name      string         `json:"name"`
	Index     int            `json:"index"`
	Kind      string         `json:"kind"`
	Up        bool           `json:"up"`
	MTU       int            `json:"mtu"`
	MAC       string         `json:"mac,omitempty"`
	Addresses []netip.Prefix `json:"addresses"`
	Settings  map[string]any `json:"settings,omitempty"`
	Port      map[string]any `json:"port,omitempty"`
	// SpeedMbit is -1 if unknown, null if the driver reports none.
	SpeedMbit *int `json:"speed_mbit"`
	Hardware
	Link
}

// WriteJSON writes the links of one namespace as an indented JSON document.
func WriteJSON(w io.Writer, i Inventory) error {
	return encode(w, document{schema, newNamespaceJSON(i)})
}

// WriteAllJSON writes the links of several namespaces as an indented JSON document.
func WriteAllJSON(w io.Writer, inventories []Inventory) error {
	namespaces := []namespaceJSON{}
	for _, i := range inventories {
		namespaces = append(namespaces, newNamespaceJSON(i))
	}
	return encode(w, struct {
		Schema     int             `json:"schema"`
		Namespaces []namespaceJSON `json:"namespaces"`
	}{schema, namespaces})
}

func encode(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(document)
}

func newNamespaceJSON(i Inventory) namespaceJSON {
	out := namespaceJSON{Namespace: i.Namespace, Links: []linkJSON{}}
	for _, l := range i.Links {
		j := linkJSON{
			Name: l.Name, Index: l.Index, Kind: l.Kind, Up: l.Up, MTU: l.MTU, MAC: l.MAC.String(),
			Addresses: append([]netip.Prefix{}, l.Addrs...), Settings: settingsJSON(l.Settings), Port: settingsJSON(l.Port),
			Hardware: l.Hardware, Link: l,
		}
		if speed := l.Hardware.Speed; speed != 0 {
			j.SpeedMbit = &speed
		}
		if j.Offloads == nil {
			j.Offloads = map[string]bool{}
		}
		out.Links = append(out.Links, j)
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

// MarshalJSON implements json.Marshaler, with the best known name.
func (p NamespaceInfo) MarshalJSON() ([]byte, error) {
	type plain NamespaceInfo
	p.Name = p.String()
	return json.Marshal(plain(p))
}
