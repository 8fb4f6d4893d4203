// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/document"
	"mustang/internal/policy"
	"mustang/internal/service"
)

type clusterSpec struct {
	Tier     string                `json:"tier"`
	Priority *int                  `json:"priority"`
	Subject  subject               `json:"subject"`
	Ingress  atMost25[clusterRule] `json:"ingress"`
	Egress   atMost25[clusterRule] `json:"egress"`
}

// atMost25 is a list of rules, peers, protocols or networks. The API limits it to 25.
type atMost25[T any] []T

// UnmarshalJSONFrom decodes it.
func (l *atMost25[T]) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	err := json.UnmarshalDecode(d, (*[]T)(l))
	if err == nil && len(*l) > 25 {
		err = fmt.Errorf("%d of them: want at most 25", len(*l))
	}
	return err
}

func (s *set) addClusterNetworkPolicy(o document.Object, data jsontext.Value) error {
	var spec clusterSpec
	if err := decodeSpec(data, &spec); err != nil {
		return err
	}
	p := policy.Policy{Name: o.Metadata.Name}
	var known bool
	switch p.Tier, known = tiers[spec.Tier]; {
	case !known:
		return fmt.Errorf("spec.tier: %q: want Admin or Baseline", spec.Tier)
	case spec.Priority == nil:
		return errors.New("spec.priority: missing")
	case *spec.Priority < 0 || *spec.Priority > 1000:
		return fmt.Errorf("spec.priority: %d: want 0 to 1000", *spec.Priority)
	case spec.Subject.PodSelector == nil:
		return fmt.Errorf("spec.subject: %w", errSubject)
	}
	p.Priority, p.Subject = uint16(*spec.Priority), *spec.Subject.PodSelector
	for d, rules := range [][]clusterRule{policy.Egress: spec.Egress, policy.Ingress: spec.Ingress} {
		to := []*[]policy.Rule{policy.Egress: &p.Egress, policy.Ingress: &p.Ingress}[d]
		for i := range rules {
			r, err := rules[i].rule(policy.Direction(d))
			if err != nil {
				return fmt.Errorf("spec.%s[%d].%w", policy.Direction(d), i, err)
			}
			*to = append(*to, r)
		}
	}
	return s.addPolicy(p)
}

var (
	tiers   = map[string]policy.Tier{"Admin": policy.Admin, "Baseline": policy.Baseline}
	actions = map[string]policy.Action{"Accept": policy.Accept, "Deny": policy.Deny, "Pass": policy.Pass}
)

type clusterRule struct {
	Name      string                    `json:"name"`
	Action    string                    `json:"action"`
	From      atMost25[subject]         `json:"from"`
	To        atMost25[target]          `json:"to"`
	Protocols atMost25[clusterProtocol] `json:"protocols"`
}

func (r *clusterRule) rule(d policy.Direction) (policy.Rule, error) {
	out, named := policy.Rule{Name: r.Name}, false
	for _, q := range r.From {
		out.Peers = append(out.Peers, policy.Peer{Pods: q.PodSelector})
	}
	for _, q := range r.To {
		out.Peers = append(out.Peers, q...)
	}
	for _, q := range r.Protocols {
		out.Ports, named = append(out.Ports, policy.Port(q)), named || q.Name != ""
	}
	field, other, wrong := "to", "from", r.From != nil
	if d == policy.Ingress {
		field, other, wrong = "from", "to", r.To != nil
	}
	var known bool
	switch out.Action, known = actions[r.Action]; {
	case wrong:
		return out, fmt.Errorf("%s: unknown field", other)
	case !known:
		return out, fmt.Errorf("action: %q: want Accept, Deny or Pass", r.Action)
	case len(out.Peers) == 0:
		return out, fmt.Errorf("%s: missing", field)
	case r.Protocols != nil && len(r.Protocols) == 0:
		return out, errors.New("protocols: empty: leave it out to match all")
	case named && slices.ContainsFunc(out.Peers, func(q policy.Peer) bool { return q.Pods == nil }):
		return out, errors.New("protocols: nodes and networks lack named ports")
	}
	return out, nil
}

var errSubject = errors.New("want either namespaces or pods")

type subject struct{ *policy.PodSelector }

// UnmarshalJSONFrom decodes it.
func (s *subject) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	var of clusterPeer
	if err := json.UnmarshalDecode(d, &of); err != nil {
		return err
	}
	if s.PodSelector = of.pods(); s.PodSelector == nil || !of.isOne() {
		return errSubject
	}
	return nil
}

type target []policy.Peer

// UnmarshalJSONFrom decodes it.
func (t *target) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	var of clusterPeer
	err := json.UnmarshalDecode(d, &of)
	switch {
	case err != nil:
		return err
	case !of.isOne():
		return errors.New("want exactly one of namespaces, pods, nodes and networks")
	case of.Nodes != nil:
		*t = target{{Nodes: &of.Nodes.Selector}}
	case of.DomainNames != nil:
		return fieldError("domainNames", errors.New("not supported: rules match addresses only"))
	case of.Networks == nil:
		*t = target{{Pods: of.pods()}}
	case len(of.Networks) == 0:
		return fieldError("networks", errors.New("empty"))
	}
	for _, n := range of.Networks {
		*t = append(*t, policy.Peer{Block: &policy.Block{CIDR: masked(n)}})
	}
	return nil
}

type clusterPeer struct {
	Namespaces *selector `json:"namespaces"`
	Pods       *struct {
		NamespaceSelector selector `json:"namespaceSelector"`
		PodSelector       selector `json:"podSelector"`
	} `json:"pods"`
	Nodes       *selector              `json:"nodes"`
	Networks    atMost25[netip.Prefix] `json:"networks"`
	DomainNames []string               `json:"domainNames"`
}

func only(set ...bool) bool {
	return len(slices.DeleteFunc(set, func(is bool) bool { return !is })) == 1
}

func (q *clusterPeer) isOne() bool {
	return only(q.Namespaces != nil, q.Pods != nil, q.Nodes != nil, q.Networks != nil, q.DomainNames != nil)
}

func (q *clusterPeer) pods() *policy.PodSelector {
	switch {
	case q.Namespaces != nil:
		return &policy.PodSelector{Namespaces: q.Namespaces.Selector}
	case q.Pods != nil:
		return &policy.PodSelector{Namespaces: q.Pods.NamespaceSelector.Selector, Pods: q.Pods.PodSelector.Selector}
	}
	return nil
}

type clusterProtocol policy.Port

// UnmarshalJSONFrom decodes it.
func (p *clusterProtocol) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	type ports struct {
		DestinationPort *struct {
			Number *portNumber `json:"number"`
			Range  *struct {
				Start portNumber `json:"start"`
				End   portNumber `json:"end"`
			} `json:"range"`
		} `json:"destinationPort"`
	}
	var of struct {
		TCP                  *ports `json:"tcp"`
		UDP                  *ports `json:"udp"`
		SCTP                 *ports `json:"sctp"`
		DestinationNamedPort string `json:"destinationNamedPort"`
	}
	if err := json.UnmarshalDecode(d, &of); err != nil {
		return err
	}
	p.Name = of.DestinationNamedPort
	if !only(of.TCP != nil, of.UDP != nil, of.SCTP != nil, p.Name != "") {
		return fieldError("tcp", errors.New("want exactly one of tcp, udp, sctp and destinationNamedPort"))
	}
	for protocol, ports := range map[service.Protocol]*ports{service.TCP: of.TCP, service.UDP: of.UDP,
		service.SCTP: of.SCTP} {
		if ports == nil {
			continue
		}
		p.Protocol, p.Last = protocol, math.MaxUint16
		within := protocol.String() + "/destinationPort/"
		switch q := ports.DestinationPort; {
		case q == nil:
		case (q.Number == nil) == (q.Range == nil):
			return fieldError(within+"number", errors.New("want either number or range"))
		case q.Number != nil:
			p.First, p.Last = uint16(*q.Number), uint16(*q.Number)
		case q.Range.Start == 0:
			return fieldError(within+"range/start", errors.New("missing"))
		case q.Range.End <= q.Range.Start:
			return fieldError(within+"range/end", fmt.Errorf("%d is not greater than start %d", q.Range.End, q.Range.Start))
		default:
			p.First, p.Last = uint16(q.Range.Start), uint16(q.Range.End)
		}
	}
	return nil
}
