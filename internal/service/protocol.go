// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
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
	switch p {
	case Any:
		return "any"
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
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
func (p Protocol) Overlaps(o Protocol) bool { return p.set()&o.set() != 0 }

// protocols is a set of protocols.
type protocols uint8

// set returns the protocols that p stands for.
func (p Protocol) set() protocols {
	switch p {
	case TCP:
		return 1
	case UDP:
		return 2
	case SCTP:
		return 4
	case Any:
		return 1 | 2
	}
	return 8
}

// Protocols returns all protocols.
func Protocols() []Protocol { return []Protocol{Any, TCP, UDP, SCTP} }
