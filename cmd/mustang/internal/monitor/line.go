// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/flows"
)

// line is what is printed of an event: a line of -o json. Strings are made of numbers that programs tell, and of names that
// commands or a cluster gave: no byte of a packet is printed.
type line struct {
	Time    string        `json:"time"` // RFC 3339
	Verdict flows.Verdict `json:"verdict"`
	Reason  string        `json:"reason,omitempty"` // a counter's name without "drop_"
	// Pod is whose device or socket the program runs at, as far as known.
	Pod            string `json:"pod,omitempty"`
	Source         string `json:"source,omitempty"`
	SourcePod      string `json:"source_pod,omitempty"`
	Destination    string `json:"destination,omitempty"`
	DestinationPod string `json:"destination_pod,omitempty"`
	Service        string `json:"service,omitempty"`
	Backend        string `json:"backend,omitempty"`
	BackendPod     string `json:"backend_pod,omitempty"`
	Protocol       string `json:"protocol,omitempty"`
	Message        string `json:"message,omitempty"` // of ICMP
	Flags          string `json:"flags,omitempty"`   // of TCP
	EtherType      string `json:"ethertype,omitempty"`
	MAC            string `json:"mac,omitempty"` // the sender's
	Length         int    `json:"length,omitempty"`
	Rule           string `json:"rule,omitempty"`
	Place          string `json:"place,omitempty"`
}

// describe fills in what needs no names.
func (l *line) describe(e *flows.Event) {
	l.Time, l.Verdict, l.Reason = e.Time.Format(time.RFC3339Nano), e.Verdict, e.Reason
	l.Source, l.Destination, l.Backend = text(e.Source), text(e.Destination), text(e.Backend)
	l.Length, l.Place = e.Length, e.Place
	switch source, destination := e.Source.Addr().Unmap(), e.Destination.Addr().Unmap(); {
	case e.Rule == 0 || !source.IsValid() || !destination.IsValid() || source.Is4() == destination.Is4():
	// Of two families, one is the address that a pod is known by: no packet had it, as one to a link-local address.
	case source.Is4():
		l.Source = ""
	default:
		l.Destination = ""
	}
	if e.MAC != nil {
		l.MAC = e.MAC.String()
	}
	switch {
	case e.IsICMP():
		l.Protocol, l.Message = "icmp", message(e)
	case e.Protocol != 0:
		l.Protocol, l.Flags = e.Protocol.String(), flags(e.Flags)
	case e.EtherType == unix.ETH_P_ARP:
		l.Protocol = "arp"
	case e.EtherType != 0:
		l.EtherType = fmt.Sprintf("0x%04x", e.EtherType)
	}
}

// text returns an address, with its port if it has one.
func text(a netip.AddrPort) string {
	switch {
	case !a.IsValid():
		return ""
	case a.Port() == 0:
		return a.Addr().String()
	}
	return a.String()
}

// message returns what a message of ICMP is (RFC 792, RFC 4443).
func message(e *flows.Event) string {
	request, reply := uint8(8), uint8(0)
	if e.Protocol == unix.IPPROTO_ICMPV6 {
		request, reply = 128, 129
	}
	switch e.Message {
	case request:
		return "echo request"
	case reply:
		return "echo reply"
	}
	return fmt.Sprintf("type %d", e.Message)
}

// flags names the flags of a TCP header.
func flags(bits uint8) string {
	var set []string
	for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"} {
		if bits>>i&1 != 0 {
			set = append(set, name)
		}
	}
	return strings.Join(set, ",")
}

// text returns the line for people.
func (l *line) text(at time.Time) string {
	words := []string{at.Format("15:04:05.000"), string(l.Verdict), l.Reason}
	if l.Pod != "" && l.Pod != l.SourcePod {
		words = append(words, "at", l.Pod)
	}
	words = append(words, l.Protocol, l.Message, l.SourcePod, l.Source)
	if l.Destination+l.DestinationPod != "" {
		words = append(words, ">")
	}
	if l.Service != "" {
		words = append(words, "service")
	}
	words = append(words, l.DestinationPod, l.Destination)
	if l.Backend != "" {
		words = append(words, ">", l.BackendPod, l.Backend)
	}
	if l.EtherType != "" {
		words = append(words, "ethertype", l.EtherType)
	}
	if l.MAC != "" && (l.Source == "" || l.Reason == "source_mac" || l.Reason == "neighbour") {
		words = append(words, "from", l.MAC)
	}
	if l.Rule != "" {
		words = append(words, "by", l.Rule)
	}
	words = append(words, l.Flags)
	if l.Length != 0 {
		words = append(words, fmt.Sprint(l.Length), "bytes")
	}
	return strings.Join(slices.DeleteFunc(words, func(word string) bool { return word == "" }), " ")
}
