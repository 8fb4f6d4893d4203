// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"slices"
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
	seen := make(map[netip.AddrPort][]Protocol, len(services))
	for _, s := range services {
		if err := s.Validate(); err != nil {
			return err
		}
		had := seen[s.Frontend]
		if slices.ContainsFunc(had, s.Protocol.Overlaps) {
			return fmt.Errorf("service %s: duplicate frontend", s)
		}
		seen[s.Frontend] = append(had, s.Protocol)
	}
	return nil
}
