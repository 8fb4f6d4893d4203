// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"slices"
	"strings"
)

// Protocol is a transport protocol by its IANA number. The zero value Any stands for both TCP and UDP, not for SCTP.
type Protocol uint8

// The protocols of services.
const (
	Any  Protocol = 0
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// Protocols returns all protocols.
func Protocols() []Protocol { return []Protocol{Any, TCP, UDP, SCTP} }

// ParseProtocol parses "tcp", "udp", "sctp" or "any", in any case.
func ParseProtocol(s string) (Protocol, error) {
	for _, p := range Protocols() {
		if strings.ToLower(s) == p.String() {
			return p, nil
		}
	}
	return Any, fmt.Errorf("invalid protocol %q: want tcp, udp, sctp or any", s)
}

// String returns the lower-case name, or the number of a protocol without a name here.
func (p Protocol) String() string {
	if i := slices.Index(Protocols(), p); i >= 0 {
		return []string{"any", "tcp", "udp", "sctp"}[i]
	}
	return fmt.Sprintf("protocol-%d", uint8(p))
}

// Each returns TCP and UDP for Any, otherwise p alone.
func (p Protocol) Each() []Protocol {
	if p == Any {
		return []Protocol{TCP, UDP}
	}
	return []Protocol{p}
}

// Overlaps reports whether p and o have a common protocol: if so, two such services cannot have one frontend.
func (p Protocol) Overlaps(o Protocol) bool {
	return p == o || slices.Contains(p.Each(), o) || slices.Contains(o.Each(), p)
}

// Owner is a client of the datapath. An owner changes and deletes only its own services.
type Owner uint8

// The owners. NoOwner is the zero value; no stored service has it.
const (
	NoOwner Owner = iota
	CNI
	CLI
	Agent
	Lab
)

// String returns the lower-case name.
func (o Owner) String() string {
	if names := []string{"none", "cni", "cli", "agent", "lab"}; int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("owner-%d", uint8(o))
}
