// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"net/netip"

	"mustang/internal/service"
)

// Validate returns an error that names the field, in the words of Kubernetes.
func (p *Policy) Validate() error {
	switch {
	case p.Name == "":
		return errors.New("metadata.name: missing")
	case !isSubdomain(p.Name):
		return fmt.Errorf("metadata.name: %q: want at most %d of a to z, 0 to 9, . and -", p.Name, maxSubdomain)
	case p.Namespace != "" && !isLabel(p.Namespace):
		return fmt.Errorf("metadata.namespace: %q: want at most %d of a to z, 0 to 9 and -", p.Namespace, maxLabel)
	case p.Tier > Baseline:
		return fmt.Errorf("spec.tier: %d is not known", p.Tier)
	case (p.Tier == Namespaced) != (p.Namespace != ""):
		return errors.New("metadata.namespace: a NetworkPolicy has one, others have none")
	case p.Priority > 1000:
		return fmt.Errorf("spec.priority: %d: want 0 to 1000", p.Priority)
	}
	if err := p.Subject.validate(); err != nil {
		return fmt.Errorf("spec.%w", err)
	}
	for d, peers := range []string{Egress: "to", Ingress: "from"} {
		rules, _ := p.rules(Direction(d))
		for i := range rules {
			if err := rules[i].validate(p.Tier, peers); err != nil {
				return fmt.Errorf("spec.%s[%d].%w", Direction(d), i, err)
			}
		}
	}
	return p.validateSize()
}

func (s PodSelector) validate() error {
	if err := s.Namespaces.Validate(); err != nil {
		return fmt.Errorf("namespaceSelector.%w", err)
	}
	if err := s.Pods.Validate(); err != nil {
		return fmt.Errorf("podSelector.%w", err)
	}
	return nil
}

func (r *Rule) validate(t Tier, peers string) error {
	if r.Action > Pass || t == Namespaced && r.Action != Accept {
		return errors.New("action: not known in this tier")
	}
	for i, p := range r.Peers {
		if err := p.validate(); err != nil {
			return fmt.Errorf("%s[%d].%w", peers, i, err)
		}
	}
	for i, p := range r.Ports {
		if err := p.validate(); err != nil {
			return fmt.Errorf("ports[%d].%w", i, err)
		}
	}
	return nil
}

func (p Peer) validate() error {
	switch {
	case p.Pods != nil && p.Nodes == nil && p.Block == nil:
		return p.Pods.validate()
	case p.Nodes != nil && p.Pods == nil && p.Block == nil:
		if err := p.Nodes.Validate(); err != nil {
			return fmt.Errorf("nodes.%w", err)
		}
		return nil
	case p.Block != nil && p.Pods == nil && p.Nodes == nil:
		return p.Block.Validate()
	}
	return errors.New("peer: want exactly one of pods, nodes and addresses")
}

// Validate returns an error that names the field.
func (b *Block) Validate() error {
	if !b.CIDR.IsValid() || b.CIDR != b.CIDR.Masked() || b.CIDR.Addr().Is4In6() {
		return fmt.Errorf("ipBlock.cidr: %v is not a range of addresses", b.CIDR)
	}
	for i, e := range b.Except {
		if !e.IsValid() || e != e.Masked() || e.Bits() <= b.CIDR.Bits() || !b.CIDR.Contains(e.Addr()) {
			return fmt.Errorf("ipBlock.except[%d]: %v is not a smaller range inside %v", i, e, b.CIDR)
		}
	}
	return nil
}

func (p Port) validate() error {
	switch {
	case p.Protocol == service.Any && p.Name == "":
		return errors.New("protocol: missing")
	case p.Protocol != service.Any && p.Protocol != service.TCP && p.Protocol != service.UDP && p.Protocol != service.SCTP:
		return fmt.Errorf("protocol: %s: want TCP, UDP or SCTP", p.Protocol)
	case p.Name != "" && (p.First != 0 || p.Last != 0):
		return errors.New("endPort: a port with a name has none")
	case p.Name != "" && !isPortName(p.Name):
		return fmt.Errorf("port: %q: want a number, or at most %d of a to z, 0 to 9 and -, with a letter", p.Name,
			maxPortName)
	case p.Last < p.First:
		return fmt.Errorf("endPort: %d is less than port %d", p.Last, p.First)
	}
	return nil
}

// Validate validates the policies and the pods of one source: names and addresses that two have are errors.
func (s *Snapshot) Validate() error {
	seen := make(map[Origin]bool, len(s.Policies))
	for i := range s.Policies {
		o := s.Policies[i].origin()
		if seen[o] {
			return fmt.Errorf("%s is there twice", o)
		}
		seen[o] = true
	}
	return s.validate()
}

// owner is a pod, or a node without a namespace.
type owner struct{ namespace, name string }

func (o owner) String() string {
	if o.namespace == "" {
		return "node " + o.name
	}
	return "pod " + o.namespace + "/" + o.name
}

// validate validates policies and pods. It refuses an address that two pods or nodes have.
func (s *Snapshot) validate() error {
	for i := range s.Policies {
		if err := s.Policies[i].Validate(); err != nil {
			return fmt.Errorf("%s: %w", s.Policies[i].origin(), err)
		}
	}
	taken := make(map[netip.Addr]owner, len(s.Pods))
	take := func(of owner, addresses []netip.Addr) error {
		for _, a := range addresses {
			if had, ok := taken[a.Unmap()]; ok && had != of {
				return fmt.Errorf("%s: address %s also used by %s", of, a, had)
			}
			taken[a.Unmap()] = of
		}
		return nil
	}
	for i := range s.Nodes {
		if err := take(owner{"", s.Nodes[i].Name}, s.Nodes[i].Addresses); err != nil {
			return err
		}
	}
	for i := range s.Pods {
		p := &s.Pods[i]
		for _, n := range p.Ports {
			if err := (Port{Protocol: n.Protocol, First: n.Port, Last: n.Port}).validate(); err != nil {
				return fmt.Errorf("%s: port %q: %w", owner{p.Namespace, p.Name}, n.Name, err)
			}
		}
		if p.HostNetwork {
			continue
		}
		if err := take(owner{p.Namespace, p.Name}, p.Addresses); err != nil {
			return err
		}
	}
	return nil
}
