// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Backend is one address and port that serves a service.
type Backend struct {
	Addr   netip.AddrPort
	State  State
	Weight uint16 // the share of new connections relative to the other backends; 0 counts as 1
	Local  bool   // on this node, which matters where a policy is Local
}

// Backends returns active backends of equal weight at the addresses.
func Backends(addrs ...netip.AddrPort) []Backend {
	backends := make([]Backend, len(addrs))
	for i, addr := range addrs {
		backends[i] = Backend{Addr: addr}
	}
	return backends
}

// Compare orders backends by state, so that backends that get new connections come first, then by node, this node
// first, then by address.
func (b Backend) Compare(o Backend) int {
	switch c := cmp.Compare(b.State, o.State); {
	case c != 0:
		return c
	case b.Local != o.Local && b.Local:
		return -1
	case b.Local != o.Local:
		return 1
	}
	return cmp.Or(b.Addr.Compare(o.Addr), cmp.Compare(b.Weight, o.Weight))
}

// equal treats weights 0 and 1 as equal.
func (b Backend) equal(o Backend) bool {
	return b.Addr == o.Addr && b.State == o.State && b.Local == o.Local && max(b.Weight, 1) == max(o.Weight, 1)
}

// String formats b: "10.1.0.1:80", and "10.1.0.1:80,draining,weight=2,local" if it differs from the default.
func (b Backend) String() string {
	text := b.Addr.String()
	if b.State != Active {
		text += "," + b.State.String()
	}
	if b.Weight > 1 {
		text += ",weight=" + strconv.Itoa(int(b.Weight))
	}
	if b.Local {
		text += "," + localWord
	}
	return text
}

const localWord = "local"

// MarshalText returns the text of String.
func (b Backend) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText parses the text of String, and validates the address.
func (b *Backend) UnmarshalText(text []byte) (err error) {
	fields := strings.Split(string(text), ",")
	*b = Backend{}
	if b.Addr, err = splitAddrPort(fields[0]); err == nil {
		err = validateBackend(b.Addr)
	}
	if err != nil {
		return fmt.Errorf("backend %q: %w", text, err)
	}
	seen := map[string]bool{}
	for _, field := range fields[1:] {
		kind, value, valued := strings.Cut(field, "=")
		switch {
		case kind == "weight" && valued:
			b.Weight, err = parseNumber(kind, value)
		case field == localWord:
			b.Local = true
		default:
			kind = "state"
			err = b.State.UnmarshalText([]byte(field))
		}
		if err == nil && seen[kind] {
			err = fmt.Errorf("more than one state or weight, or %q twice", localWord)
		}
		if err != nil {
			return fmt.Errorf("backend %q: %w", text, err)
		}
		seen[kind] = true
	}
	return nil
}
