// SPDX-License-Identifier: Apache-2.0

package linkinfo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"
)

// Inventory is the links of one namespace.
type Inventory struct {
	Namespace NamespaceInfo
	Links     []Link
}

// Printable returns a text with escapes for characters that are unsafe on a terminal or in a document: pods choose
// the names of their devices and programs.
func Printable(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return text
	}
	quoted := strconv.Quote(text)
	return quoted[1 : len(quoted)-1]
}

func kindText(kind, mode string) string {
	if kind == mode { // a TUN device of kind tun
		return kind
	}
	if kind == "tun" && mode != "" {
		return mode
	}
	return strings.TrimSpace(kind + " " + mode)
}

func stateText(l Link) string {
	switch {
	case !l.Up:
		return "down"
	case !l.Carrier:
		return "no-carrier"
	case l.OperState == "up" || l.OperState == "unknown": // of most virtual devices
		return "up"
	}
	return l.OperState
}

func speedText(speed int) string {
	switch {
	case speed == 0:
		return "-"
	case speed == SpeedUnknown:
		return "unknown"
	case speed >= 1000:
		return strconv.FormatFloat(float64(speed)/1000, 'g', -1, 64) + "Gbit/s"
	}
	return strconv.Itoa(speed) + "Mbit/s"
}

// joinedText names the devices that a link is joined to, without the bridge or parent that it is printed below.
func joinedText(l Link, below string) string {
	var parts []string
	if l.Peer != nil {
		parts = append(parts, "<-> "+peerText(*l.Peer))
	}
	if l.Parent != nil && (l.Parent.Namespace != nil || l.Parent.Name == "" || l.Parent.Name != below) {
		parts = append(parts, "on "+peerText(*l.Parent))
	}
	if l.Master != "" && l.Master != below {
		parts = append(parts, "port of "+l.Master)
	}
	return strings.Join(parts, ", ")
}

func peerText(e Peer) string {
	name := cmp.Or(e.Name, fmt.Sprintf("device %d", e.Index))
	if e.Namespace != nil {
		name += " in " + e.Namespace.String()
	}
	return name
}

// settingsText formats settings, such as "stp off" and "id 42". The settings of br_netfilter become one item.
func settingsText(settings []Setting) (out []string) {
	var calls []string
	isBridge := false
	for _, s := range settings {
		name, value := strings.ReplaceAll(s.Name, "_", "-"), fmt.Sprint(s.Value)
		on, isBool := s.Value.(bool)
		if isBool {
			value = map[bool]string{true: "on", false: "off"}[on]
		}
		if table, isCall := strings.CutPrefix(name, "nf-call-"); isCall {
			isBridge = true
			if on {
				calls = append(calls, table)
			}
			continue
		}
		if before, found := strings.CutSuffix(name, "-ms"); found {
			name, value = before, value+"ms"
		}
		out = append(out, name+" "+value)
	}
	if isBridge {
		out = append(out, "nf-call "+cmp.Or(strings.Join(calls, "+"), "off"))
	}
	return out
}

func offloadsText(l Link) string {
	var on, off string
	for _, name := range []string{"tso", "gso", "uso", "gro", "lro", "big-tcp", "sg", "tx-checksum", "rx-checksum"} {
		if is, has := l.Hardware.Offloads[name]; is {
			on += " " + name
		} else if has {
			off += " " + name
		}
	}
	if off != "" {
		return fmt.Sprintf("offloads%s (off:%s)", on, off)
	}
	return "offloads" + cmp.Or(on, " none")
}

func convert[T, U any](values []T, to func(T) U) (out []U) {
	for _, v := range values {
		out = append(out, to(v))
	}
	return out
}

func programText(p Program) string {
	owner := ""
	if p.Mustang {
		owner = ", mustang"
	}
	return fmt.Sprintf("%s: %s (id %d%s)", p.Hook, cmp.Or(p.Name, "program"), p.ID, owner)
}

// WriteTable writes a row per link, sorted by index, with a column for the namespace if there are several.
func WriteTable(w io.Writer, inventories []Inventory) error {
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	write := func(cells ...string) {
		if len(inventories) < 2 {
			cells = cells[1:]
		}
		fmt.Fprintln(tab, strings.Join(convert(cells, Printable), "\t"))
	}
	write("NAMESPACE", "INDEX", "NAME", "KIND", "STATE", "MTU", "SPEED", "MAC", "JOINED TO", "ADDRESSES", "PROGRAMS")
	for _, inventory := range inventories {
		for _, l := range inventory.Links {
			addresses, programs := convert(l.Addrs, netip.Prefix.String), convert(l.Programs, programText)
			write(inventory.Namespace.String(),
				strconv.Itoa(l.Index), l.Name, kindText(l.Kind, l.Mode), stateText(l), strconv.Itoa(l.MTU),
				speedText(l.Hardware.Speed), cmp.Or(l.MAC.String(), "-"), cmp.Or(joinedText(l, ""), "-"),
				cmp.Or(strings.Join(addresses, ","), "-"), cmp.Or(strings.Join(programs, ", "), "-"))
		}
	}
	return tab.Flush()
}

const schema = 1

// JSON returns the links of namespaces for a JSON document: of one if it is alone, else of a list.
func JSON(inventories []Inventory, alone bool) any {
	if alone {
		return document{schema, newNamespaceJSON(inventories[0])}
	}
	return struct {
		Schema     int             `json:"schema"`
		Namespaces []namespaceJSON `json:"namespaces"`
	}{schema, append([]namespaceJSON{}, convert(inventories, newNamespaceJSON)...)}
}

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
	SpeedMbit *int           `json:"speed_mbit"` // -1 if unknown, null if the driver reports none
	Hardware
	Link
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

// MarshalJSON implements json.Marshaler, with the name that String returns.
func (p NamespaceInfo) MarshalJSON() ([]byte, error) {
	type plain NamespaceInfo
	p.Name = p.String()
	return json.Marshal(plain(p))
}
