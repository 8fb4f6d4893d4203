// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"slices"
	"strings"
)

// Policy selects the backends that a client may reach.
type Policy uint8

// The traffic policies, as Kubernetes names them.
const (
	Cluster Policy = iota // all backends
	Local                 // backends on the client's or the receiving node
)

func policyNames() []string { return []string{"cluster", "local"} }

// String returns the lower-case name.
func (p Policy) String() string { return nameOf(p, "policy", policyNames()) }

// MarshalText returns the text of String.
func (p Policy) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText parses the name of a policy.
func (p *Policy) UnmarshalText(text []byte) error {
	return parseName(p, "policy", policyNames(), text)
}

// Choice is how a backend is chosen for a new connection.
type Choice uint8

// The choices. Both heed weights.
const (
	Random Choice = iota
	Maglev        // by a hash of the connection, the same on all nodes: see package maglev
)

func choiceNames() []string { return []string{"random", "maglev"} }

// String returns the lower-case name.
func (c Choice) String() string { return nameOf(c, "choice", choiceNames()) }

// MarshalText returns the text of String.
func (c Choice) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText parses the name of a choice.
func (c *Choice) UnmarshalText(text []byte) error {
	return parseName(c, "choice", choiceNames(), text)
}

// OnRemove is what happens to the open TCP connections of a backend that is removed.
type OnRemove uint8

// What can happen.
const (
	Keep  OnRemove = iota // they go on until one side ends them
	Reset                 // both sides get a reset
)

func onRemoveNames() []string { return []string{"keep", "reset"} }

// String returns the lower-case name.
func (r OnRemove) String() string { return nameOf(r, "on-remove", onRemoveNames()) }

// MarshalText returns the text of String.
func (r OnRemove) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText parses the name of what happens.
func (r *OnRemove) UnmarshalText(text []byte) error {
	return parseName(r, "on-remove", onRemoveNames(), text)
}

// DSR is direct server return: how packets of clients outside reach backends on other nodes, which then answer the clients
// themselves.
type DSR uint8

// The ways. Both nodes must have the service with the same one.
const (
	NoDSR DSR = iota // backends answer by the node that the client called
	IPIP             // in IPIP, or IPv6 in IPv6, to the backend's address
)

func dsrNames() []string { return []string{"none", "ipip"} }

// String returns the lower-case name.
func (d DSR) String() string { return nameOf(d, "dsr", dsrNames()) }

// MarshalText returns the text of String.
func (d DSR) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses the name of a way.
func (d *DSR) UnmarshalText(text []byte) error { return parseName(d, "dsr", dsrNames(), text) }

func nameOf[E ~uint8](e E, noun string, names []string) string {
	if int(e) < len(names) {
		return names[e]
	}
	return fmt.Sprintf("%s-%d", noun, uint8(e))
}

func parseName[E ~uint8](e *E, noun string, names []string, text []byte) error {
	i := slices.Index(names, string(text))
	if i < 0 {
		return fmt.Errorf("unknown %s %q: want %s", noun, text, strings.Join(names, ", "))
	}
	*e = E(i)
	return nil
}
