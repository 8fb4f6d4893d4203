// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"fmt"
	"strings"
)

// Protocol is a transport protocol by its IANA number. The zero value Any stands for TCP and UDP both.
type Protocol uint8

// The protocols that a service can have.
const (
	Any Protocol = 0
	TCP Protocol = 6
	UDP Protocol = 17
)

// ParseProtocol reads "tcp", "udp" or "any", in any case.
func ParseProtocol(s string) (Protocol, error) {
	switch strings.ToLower(s) {
	case "any":
		return Any, nil
	case "tcp":
		return TCP, nil
	case "udp":
		return UDP, nil
	}
	return Any, fmt.Errorf("protocol %q: want tcp, udp or any", s)
}

// String returns the lower-case name, or the number of a protocol that has no name here.
func (p Protocol) String() string {
	switch p {
	case Any:
		return "any"
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	}
	return fmt.Sprintf("protocol-%d", uint8(p))
}

// Each returns the protocols that p stands for: TCP and UDP for Any, otherwise p alone.
func (p Protocol) Each() []Protocol {
	if p == Any {
		return []Protocol{TCP, UDP}
	}
	return []Protocol{p}
}
