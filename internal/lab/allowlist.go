// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"mustang/internal/netns"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// allowlist is what may connect to a pod by TCP over IPv4. All other connections to it are denied.
type allowlist struct {
	// Pod is the address of the pod.
	Pod netip.Addr
	// Rules are asked in their order.
	Rules []allowRule
}

// allowRule allows connections from some addresses to one port.
type allowRule struct {
	From netip.Prefix
	Port uint16
}

// allowlistName is that of the policy, of the pod in labels, and of what is named after the pod in rules.
const allowlistName = "allowlist"

// Snapshot returns the list as a NetworkPolicy, with the pod that it selects.
func (l allowlist) Snapshot() policy.Snapshot {
	labels := map[string]string{"app": allowlistName}
	subject := policy.PodSelector{
		Namespaces: policy.Selector{Labels: map[string]string{policy.NamespaceLabel: "default"}}, Pods: policy.Selector{Labels: labels},
	}
	p := policy.Policy{Tier: policy.Namespaced, Namespace: "default", Name: allowlistName, IsolatesIngress: true, Subject: subject}
	for _, r := range l.Rules {
		p.Ingress = append(p.Ingress, policy.Rule{
			Peers: []policy.Peer{{Block: &policy.Block{CIDR: r.From}}},
			Ports: []policy.Port{{Protocol: service.TCP, First: r.Port, Last: r.Port}},
		})
	}
	return policy.Snapshot{
		Pods:     []policy.Pod{{Namespace: "default", Name: allowlistName, Labels: labels, Addresses: []netip.Addr{l.Pod}}},
		Policies: []policy.Policy{p},
	}
}

// enforcer enforces an allow list in a host.
type enforcer interface {
	// Write writes a list into a host that has none, Clear removes it.
	Write(ctx context.Context, l allowlist) error
	Clear(ctx context.Context) error
	// Add appends a rule to the list l that was written, and Remove removes it again.
	Add(ctx context.Context, l allowlist, r allowRule) error
	Remove(ctx context.Context, l allowlist, r allowRule) error
	// Counters returns the packets that rules have counted: "established" of connections that were allowed before,
	// "allowed" by the last rule of the list, "denied" by none. It is nil without counters.
	Counters() (map[string]uint64, error)
}

// rulesPlace says where a form of the list has its rules: those of established connections begin the first chain, and the
// second ends with the last that allows and the one that denies.
type rulesPlace struct{ table, first, second string }

// counters reads the counters of rules.
func (p rulesPlace) counters(host *netns.Namespace) (map[string]uint64, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(host.FD()))
	if err != nil {
		return nil, fmt.Errorf("counters of table %s: %w", p.table, err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: p.table}
	counts := map[string][]uint64{}
	for _, chain := range []string{p.first, p.second} {
		rules, err := conn.GetRules(table, &nftables.Chain{Name: chain, Table: table})
		if err != nil {
			return nil, fmt.Errorf("counters of table %s, chain %s: %w", p.table, chain, err)
		}
		for _, r := range rules {
			counts[chain] = append(counts[chain], counted(r))
		}
	}
	first, second := counts[p.first], counts[p.second]
	if len(first) < 1 || len(second) < 2 {
		return nil, fmt.Errorf("table %s has %d and %d rules", p.table, len(first), len(second))
	}
	return map[string]uint64{"established": first[0], "allowed": second[len(second)-2], "denied": second[len(second)-1]}, nil
}

// counted returns the packets that a rule has counted.
func counted(r *nftables.Rule) uint64 {
	for _, e := range r.Exprs {
		if c, ok := e.(*expr.Counter); ok {
			return c.Packets
		}
	}
	return 0
}
