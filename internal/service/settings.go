// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"slices"
	"strings"
)

// Word is a named value: its place among the names of N.
type Word[N names] uint8

// names are the names of the values of a type, and the name of the type.
type names interface {
	names() (noun string, all []string)
}

// String returns the lower-case name.
func (w Word[N]) String() string {
	var of N
	noun, all := of.names()
	if int(w) < len(all) {
		return all[w]
	}
	return fmt.Sprintf("%s-%d", noun, uint8(w))
}

// MarshalText returns the text of String.
func (w Word[N]) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText parses a name.
func (w *Word[N]) UnmarshalText(text []byte) error {
	var of N
	noun, all := of.names()
	i := slices.Index(all, string(text))
	if i < 0 {
		return fmt.Errorf("unknown %s %q: want %s", noun, text, strings.Join(all, ", "))
	}
	*w = Word[N](i)
	return nil
}

type (
	policyNames   struct{}
	choiceNames   struct{}
	onRemoveNames struct{}
	dsrNames      struct{}
	stateNames    struct{}
)

func (policyNames) names() (string, []string)   { return "policy", []string{"cluster", "local"} }
func (choiceNames) names() (string, []string)   { return "choice", []string{"random", "maglev"} }
func (onRemoveNames) names() (string, []string) { return "on-remove", []string{"keep", "reset"} }
func (dsrNames) names() (string, []string)      { return "dsr", []string{"none", "ipip"} }
func (stateNames) names() (string, []string) {
	return "state", []string{"active", "terminating", "draining", "quarantined"}
}

// Policy selects the backends that a client may reach.
type Policy = Word[policyNames]

// The traffic policies, as Kubernetes names them.
const (
	Cluster Policy = iota // all backends
	Local                 // backends on the client's or the receiving node
)

// Choice is how a backend is chosen for a new connection.
type Choice = Word[choiceNames]

// The choices. Both obey weights.
const (
	Random Choice = iota
	Maglev        // by a hash of the connection, the same on all nodes: see package maglev
)

// OnRemove decides about the open TCP connections of a backend that is removed.
type OnRemove = Word[onRemoveNames]

// The values.
const (
	Keep  OnRemove = iota // they go on until one side ends them
	Reset                 // both sides get a reset
)

// DSR is direct server return: packets of outside clients reach backends on other nodes, which answer them directly.
type DSR = Word[dsrNames]

// The values. Both nodes must use the same value for a service.
const (
	NoDSR DSR = iota // backends answer by the node that the client called
	IPIP             // in IPIP, or IPv6 in IPv6, to the backend's address
)

// State decides which connections a backend serves.
type State = Word[stateNames]

// The states of a backend.
const (
	Active      State = iota
	Terminating       // serves its connections, and new ones if no backend is active
	Draining          // serves its connections
	Quarantined       // failed its health check: gets no new connections
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
