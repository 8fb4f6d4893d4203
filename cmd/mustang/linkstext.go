// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"

	"mustang/internal/datapath"
	"mustang/internal/nl"
)

// The words in which links are shown to people.

// offloadOrder is the order in which offloads are listed.
func offloadOrder() []string {
	return []string{"tso", "gso", "uso", "gro", "lro", "sg", "tx-checksum", "rx-checksum"}
}

// kindText is the kind of a device with its mode.
func kindText(kind, mode string) string {
	if kind == mode { // a TUN device of kind tun
		return kind
	}
	if kind == "tun" && mode != "" {
		return mode
	}
	return strings.TrimSpace(kind + " " + mode)
}

// stateText is one word for whether a device can carry packets.
func stateText(l nl.Link) string {
	switch {
	case !l.Up:
		return "down"
	case !l.Carrier:
		return "no-carrier"
	case l.OperState == "up" || l.OperState == "unknown": // most virtual devices don't know
		return "up"
	}
	return l.OperState
}

// speedText is a speed in Mbit/s with its unit.
func speedText(speed int) string {
	switch {
	case speed == 0:
		return "-"
	case speed == nl.SpeedUnknown:
		return "unknown"
	case speed >= 1000:
		return strconv.FormatFloat(float64(speed)/1000, 'g', -1, 64) + "Gbit/s"
	}
	return strconv.Itoa(speed) + "Mbit/s"
}

// joinedText says what a link is joined to, other than a bridge or parent in
// the same namespace that it stands below.
func joinedText(l nl.Link, below string) string {
	var parts []string
	if l.Peer != nil {
		parts = append(parts, "<-> "+endText(*l.Peer))
	}
	if l.Parent != nil && (l.Parent.Place != nil || l.Parent.Name == "" || l.Parent.Name != below) {
		parts = append(parts, "on "+endText(*l.Parent))
	}
	if l.Master != "" && l.Master != below {
		parts = append(parts, "port of "+l.Master)
	}
	return strings.Join(parts, ", ")
}

// endText names a device, with its namespace if that is another one.
func endText(e nl.End) string {
	name := e.Name
	if name == "" {
		name = fmt.Sprintf("device %d", e.Index)
	}
	if e.Place != nil {
		name += " in " + e.Place.String()
	}
	return name
}

// settingsText lists settings: "stp off", "id 42". What br_netfilter does with a
// bridge's packets becomes one word.
func settingsText(settings []nl.Setting) []string {
	var out, calls []string
	isBridge := false
	for _, s := range settings {
		name := strings.ReplaceAll(s.Name, "_", "-")
		table, isCall := strings.CutPrefix(name, "nf-call-")
		on, isBool := s.Value.(bool)
		switch {
		case isCall:
			isBridge = true
			if on {
				calls = append(calls, table)
			}
		case isBool && on:
			out = append(out, name+" on")
		case isBool:
			out = append(out, name+" off")
		case strings.HasSuffix(name, "-ms"):
			out = append(out, fmt.Sprintf("%s %vms", strings.TrimSuffix(name, "-ms"), s.Value))
		default:
			out = append(out, fmt.Sprintf("%s %v", name, s.Value))
		}
	}
	if isBridge {
		if calls == nil {
			calls = []string{"off"}
		}
		out = append(out, "nf-call "+strings.Join(calls, "+"))
	}
	return out
}

// offloadsText lists the offloads that are on, and those that are off though
// the device has them.
func offloadsText(l nl.Link) string {
	var on, off []string
	for _, name := range offloadOrder() {
		if is, has := l.Hardware.Offloads[name]; has && is {
			on = append(on, name)
		} else if has {
			off = append(off, name)
		}
	}
	text := "offloads"
	if on != nil {
		text += " " + strings.Join(on, " ")
	}
	if on == nil && off == nil {
		text += " none"
	}
	if off != nil {
		text += " (off: " + strings.Join(off, " ") + ")"
	}
	return text
}

// queuesText tells how packets wait for the device.
func queuesText(l nl.Link) string {
	return fmt.Sprintf("queues %d tx %d rx, qdisc %s", l.TxQueues, l.RxQueues, l.Qdisc)
}

// programText is a program at its place.
func programText(p datapath.AttachedProgram) string {
	name := p.Name
	if name == "" {
		name = "program"
	}
	owner := ""
	if p.Mustang {
		owner = ", mustang"
	}
	return fmt.Sprintf("%s: %s (id %d%s)", p.Hook, name, p.ID, owner)
}
