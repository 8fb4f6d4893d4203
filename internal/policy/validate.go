// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"

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
		return fmt.Errorf("spec.tier: unknown tier %d", p.Tier)
	case (p.Tier == Namespaced) != (p.Namespace != ""):
		return errors.New("metadata.namespace: a NetworkPolicy has one, others have none")
	case p.Priority > 1000:
		return fmt.Errorf("spec.priority: %d: want 0 to 1000", p.Priority)
	}
	if err := within("spec", p.Subject.validate()); err != nil {
		return err
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
	return cmp.Or(within("namespaceSelector", s.Namespaces.Validate()), within("podSelector", s.Pods.Validate()))
}

func within(field string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s.%w", field, err)
	}
	return err
}

func (r *Rule) validate(t Tier, peers string) error {
	if r.Action > Pass || t == Namespaced && r.Action != Accept {
		return errors.New("action: unknown in this tier")
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
		return within("nodes", p.Nodes.Validate())
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
		if !e.IsValid() || e != e.Masked() || e.Addr().Is4In6() || e.Bits() <= b.CIDR.Bits() || !b.CIDR.Contains(e.Addr()) {
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

type owner struct{ namespace, name string }

func (o owner) String() string {
	if o.namespace == "" {
		return "node " + o.name
	}
	return "pod " + o.namespace + "/" + o.name
}

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

// Limits of a policy, which [Policy.Validate] checks, and of a node.
const (
	MostRules  = 20_000 // of both directions
	MostPeers  = 20_000 // of all its rules
	MostRanges = 20_000 // blocks and their exceptions
	MostPorts  = 20_000 // of all its rules
	MostKeys   = 64     // keys of labels that its selectors name

	// MostOverlaps limits pairs of a block and a range in it, of a block or an exception: 40 ms and 20 MB.
	MostOverlaps = 1 << 18
	// MostWork limits the work of compiling all that is in force on a node: seconds and 200 MB. Each of these counts 1 in
	// a rule set: an identity that a rule matches, a block or a NetworkPolicy's rule with it, a rule of a combination.
	MostWork = 1 << 22
)

// LimitError means that a limit is exceeded.
type LimitError struct {
	Namespace string // set if the limit is one of a namespace's NetworkPolicies
	// Largest is the policy with the most peers and ports if the limit is one of all policies of a node, else empty.
	Largest       Origin
	What          string
	Number, Limit int
}

// Error returns "namespace shop: 9,114 of 8,192 verdict rows".
func (e *LimitError) Error() string {
	text := fmt.Sprintf("%s of %s %s", grouped(e.Number), grouped(e.Limit), e.What)
	switch {
	case e.Namespace != "":
		return "namespace " + e.Namespace + ": " + text
	case e.Largest != Origin{}:
		return "all policies of the node: " + text + ", the largest is " + e.Largest.String()
	}
	return text
}

func exceeded(all []LimitError) *LimitError {
	for _, e := range all {
		if e.Number > e.Limit {
			return &e
		}
	}
	return nil
}

func grouped(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

func (p *Policy) size() (rules, peers, ranges, ports int) {
	for _, r := range p.allRules {
		rules, peers, ports = rules+1, peers+len(r.Peers), ports+len(r.Ports)
		for _, peer := range r.Peers {
			if peer.Block != nil {
				ranges += 1 + len(peer.Block.Except)
			}
		}
	}
	return rules, peers, ranges, ports
}

func (p *Policy) validateSize() error {
	rules, peers, ranges, ports := p.size()
	keys := map[string]bool{}
	for _, s := range p.selectors {
		s.keysTo(keys)
	}
	delete(keys, NamespaceLabel) // most policies have it
	if e := exceeded([]LimitError{
		{What: "peers of rules", Number: peers, Limit: MostPeers}, {What: "rules", Number: rules, Limit: MostRules},
		{What: "ranges of addresses", Number: ranges, Limit: MostRanges},
		{What: "ports of rules", Number: ports, Limit: MostPorts},
		{What: "label keys in selectors", Number: len(keys), Limit: MostKeys},
	}); e != nil {
		return fmt.Errorf("spec: %w", e)
	}
	return nil
}

// Lengths of names in Kubernetes.
const (
	maxLabel     = 63  // of RFC 1123, and of a label's name and value
	maxSubdomain = 253 // of RFC 1123
	maxPortName  = 15  // of RFC 6335
)

// Validate returns an error that names a namespace, a name or a label that no pod can have. The name may be empty.
func (p *Pod) Validate() error {
	switch {
	case !isLabel(p.Namespace):
		return fmt.Errorf("namespace %q: want at most %d of a to z, 0 to 9 and -, a letter or digit first and last",
			p.Namespace, maxLabel)
	case p.Name != "" && !isSubdomain(p.Name):
		return fmt.Errorf("pod %q: want at most %d of a to z, 0 to 9, - and ., a letter or digit first and last in each part",
			p.Name, maxSubdomain)
	}
	return validateLabels(p.Labels)
}

var errLabelText = fmt.Errorf("want at most %d of letters, digits, -, _ and ., a letter or digit first and last",
	maxLabel)

func validateLabels(labels map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		prefix, name, prefixed := strings.Cut(key, "/")
		if !prefixed {
			name = key
		}
		switch value := labels[key]; {
		case prefixed && !isSubdomain(prefix):
			return fmt.Errorf("label %q: the part before / is not the name of a domain", key)
		case !isLabelText(name):
			return fmt.Errorf("label %q: %w", key, errLabelText)
		case value != "" && !isLabelText(value):
			return fmt.Errorf("label %q: value %q: %w", key, value, errLabelText)
		}
	}
	return nil
}

// ValidateLabels returns an error that names an invalid label of a selector, which may be mistyped.
func (p *Policy) ValidateLabels() error {
	for _, s := range p.selectors {
		err := validateLabels(s.Labels)
		for _, r := range s.Requirements {
			for _, value := range append(r.Values, "") {
				err = cmp.Or(err, validateLabels(map[string]string{r.Key: value}))
			}
		}
		if err != nil {
			return fmt.Errorf("selector: %w", err)
		}
	}
	return nil
}

func isLabel(s string) bool { return len(s) <= maxLabel && isName(s, "-", false) }

// isSubdomain reports whether a text is a DNS subdomain in lower case, with parts of any length as in Kubernetes.
func isSubdomain(s string) bool {
	invalid := func(part string) bool { return !isName(part, "-", false) }
	return len(s) <= maxSubdomain && !slices.ContainsFunc(strings.Split(s, "."), invalid)
}

func isLabelText(s string) bool { return len(s) <= maxLabel && isName(s, "-_.", true) }

// isPortName reports whether a text is a service name (RFC 6335) in lower case, as for a container's port.
func isPortName(s string) bool {
	return len(s) <= maxPortName && isLabel(s) && !strings.Contains(s, "--") && strings.ContainsFunc(s, unicode.IsLetter)
}

// isName reports whether a text has ASCII letters and digits, and between them possibly the bytes of inside.
func isName(s, inside string, upper bool) bool {
	for i, b := range []byte(s) {
		alphanumeric := b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || upper && b >= 'A' && b <= 'Z'
		if !alphanumeric && (i == 0 || i == len(s)-1 || strings.IndexByte(inside, b) < 0) {
			return false
		}
	}
	return s != ""
}
