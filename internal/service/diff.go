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
	for i := range have {
		stored[have[i].Key()] = i
	}
	c := Changes{Add: make([]Service, 0, max(len(want)-len(have), 0))}
	kept := make([]bool, len(have))
	for n := range want { // by index: a service is large
		w := &want[n]
		i, ok := stored[w.Key()]
		if !ok {
			c.Add = append(c.Add, *w)
			continue
		}
		kept[i] = true
		if have[i].Equal(*w) {
			c.Unchanged++
		} else {
			c.Update = append(c.Update, Update{have[i], *w})
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
	seen := make(map[netip.AddrPort]protocols, len(services))
	for i := range services {
		s := &services[i]
		if err := s.Validate(); err != nil {
			return err
		}
		had, more := seen[s.Frontend], s.Protocol.set()
		if had&more != 0 {
			return fmt.Errorf("service %s: duplicate frontend", s)
		}
		seen[s.Frontend] = had | more
	}
	return nil
}
