// SPDX-License-Identifier: Apache-2.0

package service

import "fmt"

// Changes turn one set of services into another.
type Changes struct {
	Add       []Service
	Update    []Update
	Delete    []Service
	Unchanged int
}

// Update is a service whose stored settings or backends differ from the desired ones.
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

// ValidateSet validates each service. It fails if two of them have one frontend for the same protocol, or if
// CheckHealthPorts fails.
func ValidateSet(services []Service) error {
	seen := make(map[Key]bool, len(services))
	for i := range services {
		s := &services[i]
		if err := s.Validate(); err != nil {
			return err
		}
		for _, p := range s.Protocol.Each() {
			key := Key{s.Frontend, p}
			if seen[key] {
				return fmt.Errorf("service %s: duplicate frontend", s)
			}
			seen[key] = true
		}
	}
	return CheckHealthPorts(services)
}

// CheckHealthPorts returns an error if a service's health-check port is a node port of all addresses of the node: the
// service would answer load balancers instead of the node.
func CheckHealthPorts(sets ...[]Service) error {
	checked := map[uint16]*Service{}
	for _, set := range sets {
		for i := range set {
			if port := set[i].HealthCheckPort; port != 0 {
				checked[port] = &set[i]
			}
		}
	}
	for _, set := range sets {
		for i := range set {
			s := &set[i]
			other := checked[s.Frontend.Port()]
			if other != nil && s.NodePort && s.Frontend.Addr().IsUnspecified() && s.Protocol.Overlaps(TCP) {
				return fmt.Errorf("service %s: health-check port %d is the node port of service %s", other,
					other.HealthCheckPort, s)
			}
		}
	}
	return nil
}
