// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
)

// Changes turn one set of services into another.
type Changes struct {
	Add       []Service
	Update    []Update
	Delete    []Service
	Unchanged int
}

// Update is a service that is stored with other settings or backends than wanted.
type Update struct{ Have, Want Service }

// Diff returns the changes that turn have into want. Both must have unique keys.
func Diff(have, want []Service) Changes {
	stored := make(map[Key]int, len(have))
	for i, s := range have {
		stored[s.Key()] = i
	}
	var c Changes
	kept := make([]bool, len(have))
	for _, w := range want {
		i, ok := stored[w.Key()]
		if !ok {
			c.Add = append(c.Add, w)
			continue
		}
		kept[i] = true
		if have[i].Equal(w) {
			c.Unchanged++
		} else {
			c.Update = append(c.Update, Update{have[i], w})
		}
	}
	for i, h := range have {
		if !kept[i] {
			c.Delete = append(c.Delete, h)
		}
	}
	return c
}

// ValidateSet validates each service, and returns an error if two of them have one frontend for the same protocol.
func ValidateSet(services []Service) error {
	seen := make(map[netip.AddrPort]Protocol, len(services))
	const both = TCP | UDP // any protocol; the two numbers have no bits that would make one the other
	for _, s := range services {
		if err := s.Validate(); err != nil {
			return err
		}
		bits := s.Protocol
		if bits == Any {
			bits = both
		}
		had, ok := seen[s.Frontend]
		if ok && (had == both || bits == both || had == bits) {
			return fmt.Errorf("service %s: duplicate frontend", s)
		}
		if ok {
			bits = both
		}
		seen[s.Frontend] = bits
	}
	return nil
}
