// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/policy/blame"
	"mustang/internal/policy/policytest"
	"mustang/internal/service"
)

// TestWhoseOverlaps has one namespace with many ranges, and ranges of others around them. It is to blame if each of many others has one, and not if
// one other has all.
func TestWhoseOverlaps(t *testing.T) {
	around := func(p *policy.Policy, bits, out int) {
		block := policy.Block{CIDR: netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), bits).Masked(), Except: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.255.%d.0/24", out))}}
		p.Ingress[0].Peers = append(p.Ingress[0].Peers, policy.Peer{Block: &block})
	}
	many := with("many", "list", 10_000)
	tenant := with("a", "around", 0)
	teams := []policy.Policy{many}
	for i := range 36 {
		around(&tenant, 2+i%6, i)
		team := with(fmt.Sprint("team", i), "around", 0)
		around(&team, 2+i%6, i)
		teams = append(teams, team)
	}
	twin := tenant
	twin.Namespace = "b"
	for name, test := range map[string]struct {
		policies []policy.Policy
		want     []string
	}{"of one": {[]policy.Policy{many, tenant}, []string{"a"}}, "of two": {[]policy.Policy{many, tenant, twin}, []string{"a", "b"}}, "of many": {teams, []string{"many"}}} {
		t.Run(name, func(t *testing.T) {
			want := policies.Set{Snapshot: policy.Snapshot{Policies: test.policies}}
			for i := range want.Policies {
				p := &want.Policies[i]
				p.Subject.Namespaces = selects(policy.NamespaceLabel, p.Namespace)
				want.Pods = append(want.Pods, policy.Pod{Namespace: p.Namespace, Name: "p", Node: "here"})
			}
			full, lost, err := new(Shedder).Apply(t.Context(), &small{room: 1 << 30}, "here", want)
			var who []string
			for _, w := range full {
				who = append(who, w.Namespace)
			}
			if err != nil || lost == nil || !slices.Equal(who, test.want) || strings.Contains(full[0].Text, "many/list") {
				t.Errorf("%v, %v: %v", full, lost, err)
			}
		})
	}
}

// TestClusterOverlaps has a ClusterNetworkPolicy that overlaps too much by itself: no NetworkPolicy loses its rules for it, and an event says so of it.
func TestClusterOverlaps(t *testing.T) {
	c := policy.Policy{Tier: policy.Admin, Name: "large", Priority: 1, Ingress: []policy.Rule{{Action: policy.Deny}}}
	for i := range 600 {
		block := policy.Block{CIDR: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Except: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), 32)}}
		c.Ingress[0].Peers = append(c.Ingress[0].Peers, policy.Peer{Block: &block})
	}
	want := policies.Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{c, with("victim", "list", 3)}}}
	want.Policies[1].Subject.Namespaces = selects(policy.NamespaceLabel, "victim")
	want.Pods = []policy.Pod{{Namespace: "victim", Name: "p", Node: "here"}}
	full, _, err := new(Shedder).Apply(t.Context(), &small{room: 1 << 30}, "here", want)
	if err == nil || len(full) != 1 || full[0].Kind != kube.ClusterNetworkPolicies || full[0].Name != "large" {
		t.Errorf("%v, %v", full, err)
	}
}

// TestInternetOfOthers has namespaces with the usual block, all addresses but private ones, and one or ten with very many single addresses: these are to
// blame, and nobody else.
func TestInternetOfOthers(t *testing.T) {
	for _, tenants := range []int{1, 10} {
		want := policies.Set{}
		for i := range 3 {
			p := with(fmt.Sprint("team", i), "internet", 0)
			for _, private := range []string{"10.0.0.0/8", "192.168.0.0/16"}[:1+i%2] { // two blocks, of all teams together
				block := policy.Block{CIDR: netip.MustParsePrefix("0.0.0.0/0"), Except: []netip.Prefix{netip.MustParsePrefix(private)}}
				p.Ingress[0].Peers = append(p.Ingress[0].Peers, policy.Peer{Block: &block})
			}
			want.Policies = append(want.Policies, p)
		}
		for i := range tenants {
			p := with(fmt.Sprint("tenant", i), "list", 132_000/tenants)
			for k := range p.Ingress[0].Peers {
				at := p.Ingress[0].Peers[k].Block.CIDR.Addr().As4()
				p.Ingress[0].Peers[k].Block.CIDR = netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(20 + i), at[1], at[2], at[3]}), 32)
			}
			want.Policies = append(want.Policies, p)
		}
		for i := range want.Policies {
			p := &want.Policies[i]
			p.Subject.Namespaces = selects(policy.NamespaceLabel, p.Namespace)
			want.Pods = append(want.Pods, policy.Pod{Namespace: p.Namespace, Name: "p", Node: "here"})
		}
		full, lost, err := new(Shedder).Apply(t.Context(), &small{room: 1 << 30}, "here", want)
		if err != nil || lost == nil || len(full) == 0 {
			t.Errorf("%d tenants: %v, %v, %v", tenants, full, lost, err)
		}
		for _, w := range full {
			if !strings.HasPrefix(w.Namespace, "tenant") {
				t.Errorf("%d tenants: %s loses its rules", tenants, w.Namespace)
			}
		}
	}
}

// manyPorts returns a policy of a range with many ports, and of ranges in it with a port more.
func manyPorts(namespace string, ports, ranges int) policy.Policy {
	p := policy.Policy{Tier: policy.Namespaced, Namespace: namespace, Name: "ports", IsolatesIngress: true}
	all := policy.Rule{Action: policy.Accept, Peers: []policy.Peer{{Block: &policy.Block{CIDR: netip.MustParsePrefix("20.0.0.0/8")}}}}
	for n := range ports {
		all.Ports = append(all.Ports, policy.Port{Protocol: service.TCP, First: uint16(2*n + 1), Last: uint16(2*n + 1)})
	}
	p.Ingress = []policy.Rule{all}
	for n := range ranges {
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(n >> 8), byte(n), 0}), 24)
		port := policy.Port{Protocol: service.TCP, First: uint16(20000 + 2*n), Last: uint16(20000 + 2*n)}
		p.Ingress = append(p.Ingress, policy.Rule{Action: policy.Accept, Ports: []policy.Port{port}, Peers: []policy.Peer{{Block: &policy.Block{CIDR: block}}}})
	}
	return p
}

// TestWhoseRulesAreTooMany takes rules from the namespace whose rules are too much work, or fill a map, and leaves those of others, though
// these are larger.
func TestWhoseRulesAreTooMany(t *testing.T) {
	for name, evil := range map[string]policy.Policy{"work": manyPorts("tenant", 6000, 400), "rows": manyPorts("tenant", 300, 300)} {
		t.Run(name, func(t *testing.T) {
			want := policies.Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{with("shop", "large", 20_000), evil}}}
			for i := range want.Policies {
				p := &want.Policies[i]
				p.Subject.Namespaces.Labels = map[string]string{policy.NamespaceLabel: p.Namespace}
				want.Pods = append(want.Pods, policy.Pod{Namespace: p.Namespace, Name: "p", Node: "here", Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})}})
			}
			rows := &compiling{}
			full, lost, err := new(Shedder).Apply(t.Context(), rows, "here", want)
			if err != nil || lost == nil || len(full) != 1 || full[0].Namespace != "tenant" {
				t.Fatalf("%v, %v, %v", full, lost, err)
			}
			if p := rows.last.Policies; len(p[0].Ingress[0].Peers) != 20_000 || p[1].Ingress != nil || !p[1].IsolatesIngress {
				t.Errorf("%d rules of the other namespace, %d of this one", len(p[0].Ingress[0].Peers), len(p[1].Ingress))
			}
		})
	}
}

const mostVerdicts = 1 << 18 // as in package policies

// verdicts compiles policies, and has room for as many verdicts as the datapath.
type verdicts struct{ Policies }

func (verdicts) Apply(_ context.Context, _ service.Owner, want policies.Set) (policies.Result, error) {
	s := want.Snapshot
	s.Node = "here"
	rows, err := policy.Compile(s, policy.Rows{})
	if err == nil && len(rows.Verdicts) > mostVerdicts/8*7 {
		err = &objects.FullError{Map: "verdicts", Size: mostVerdicts}
	}
	return policies.Result{}, err
}

// TestOneIsToBlame has a tenant with many pods that may call all addresses, and many ranges, beside namespaces with some ranges each: the tenant alone
// loses rules, all before one of the others does.
func TestOneIsToBlame(t *testing.T) {
	var want policies.Set
	add := func(p policy.Policy, labels map[string]string) {
		p.Subject = policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, p.Namespace), Pods: policy.Selector{Labels: labels}}
		want.Policies = append(want.Policies, p)
		n := len(want.Policies)
		at := netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})
		want.Pods = append(want.Pods, policy.Pod{Namespace: p.Namespace, Name: p.Name, Node: "here", Labels: labels, Addresses: []netip.Addr{at}})
	}
	for i := range 40 {
		port := policy.Port{Protocol: service.TCP, First: uint16(i + 1), Last: uint16(i + 1)}
		add(policy.Policy{Tier: policy.Namespaced, Namespace: "tenant", Name: fmt.Sprint("p", i), IsolatesEgress: true, Egress: []policy.Rule{{
			Action: policy.Accept, Ports: []policy.Port{port}, Peers: []policy.Peer{{Block: &policy.Block{CIDR: netip.MustParsePrefix("0.0.0.0/0")}}},
		}}}, map[string]string{"app": fmt.Sprint(i)})
	}
	list := func(namespace string, net byte, ranges int) {
		p := with(namespace, "list", ranges)
		for i := range p.Ingress[0].Peers {
			p.Ingress[0].Peers[i].Block.CIDR = netip.PrefixFrom(netip.AddrFrom4([4]byte{20, net, byte(i >> 8), byte(i)}), 32)
		}
		add(p, nil)
	}
	list("tenant", 0, 3000)
	for n := range 8 {
		list(fmt.Sprint("shop", n), byte(n+1), 800)
	}
	full, lost, err := new(Shedder).Apply(t.Context(), verdicts{}, "here", want)
	if err != nil || lost == nil || slices.ContainsFunc(full, func(w kube.Warning) bool { return w.Namespace != "tenant" }) {
		t.Errorf("%v: %v", full, err)
	}
}

// TestRangesOfManyNamespaces has a namespace with many pods that may call all addresses, beside very many ranges, of one namespace or spread over several:
// whoever brings them loses rules.
func TestRangesOfManyNamespaces(t *testing.T) {
	for _, tenants := range []int{1, 8, 20} {
		want := policies.Set{}
		add := func(p policy.Policy, labels map[string]string) {
			p.Subject = policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, p.Namespace), Pods: policy.Selector{Labels: labels}}
			want.Policies = append(want.Policies, p)
			n := len(want.Policies)
			want.Pods = append(want.Pods, policy.Pod{
				Namespace: p.Namespace, Name: p.Name, Node: "here", Labels: labels, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})},
			})
		}
		for i := range 60 {
			add(policytest.Internet(policy.Namespaced, "shop", fmt.Sprint(i), 2), map[string]string{"app": fmt.Sprint(i)})
		}
		for i := range tenants {
			add(policytest.Addresses(fmt.Sprint("tenant", i), "list", i, 4000/tenants), nil)
		}
		full, lost, err := new(Shedder).Apply(t.Context(), verdicts{}, "here", want)
		if err != nil || lost == nil || len(full) == 0 {
			t.Errorf("%d namespaces: %v, %v, %v", tenants, full, lost, err)
		}
		for _, w := range full {
			if w.Namespace == "shop" {
				t.Errorf("%d namespaces: %s/%s has no rules in force", tenants, w.Namespace, w.Name)
			}
		}
	}
}

// TestManyAreToBlame has several namespaces with rules that are too much work together, and many large policies that are none: a few calls take the rules.
func TestManyAreToBlame(t *testing.T) {
	want := policies.Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{with("shop", "list", 100)}}}
	for n := range 6 {
		namespace := fmt.Sprint("tenant", n)
		heavy := manyPorts(namespace, 1500, 170)
		want.Policies = append(want.Policies, heavy)
		for d := range 5 {
			decoy := with(namespace, fmt.Sprint("decoy", d), 0)
			values := policy.Requirement{Key: "x", Operator: "In"}
			for i := range 500 << d {
				values.Values = append(values.Values, fmt.Sprintf("%050d", i))
			}
			decoy.Ingress[0].Peers = []policy.Peer{{Pods: &policy.PodSelector{Pods: policy.Selector{Requirements: []policy.Requirement{values}}}}}
			want.Policies = append(want.Policies, decoy)
		}
	}
	for i := range want.Policies {
		p := &want.Policies[i]
		if p.Subject.Namespaces = selects(policy.NamespaceLabel, p.Namespace); i%6 == 0 || i == 1 {
			want.Pods = append(want.Pods, policy.Pod{Namespace: p.Namespace, Name: "p", Node: "here", Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})}})
		}
	}
	to := &counting{Policies: &compiling{}}
	full, lost, err := new(Shedder).Apply(t.Context(), to, "here", want)
	if err != nil || lost == nil || to.calls > 5 || slices.ContainsFunc(full, func(w kube.Warning) bool { return w.Namespace == "shop" }) {
		t.Errorf("%d calls, %d without rules, %v: %v", to.calls, len(full), lost, err)
	}
}

// TestWhoseRangesAreTooMany takes rules from the namespace that brings ranges to a node where others, or policies of the cluster, have many rules
// of all addresses, and leaves those of the others, though these have more rules.
func TestWhoseRangesAreTooMany(t *testing.T) {
	internet := func(tier policy.Tier, namespace string, rules int) policy.Policy {
		p := policy.Policy{Tier: tier, Namespace: namespace, Name: "internet", IsolatesEgress: tier == policy.Namespaced}
		for n := range rules {
			p.Egress = append(p.Egress, policy.Rule{
				Action: policy.Accept, Ports: []policy.Port{{Protocol: service.TCP, First: uint16(2*n + 1), Last: uint16(2*n + 1)}},
				Peers: []policy.Peer{{Block: &policy.Block{CIDR: netip.PrefixFrom(netip.IPv4Unspecified(), 0)}}},
			})
		}
		return p
	}
	for name, tier := range map[string]policy.Tier{"of other tenants": policy.Namespaced, "of the cluster": policy.Admin} {
		t.Run(name, func(t *testing.T) {
			evil := with("tenant", "evil", 40_000)
			evil.Subject.Namespaces = selects(policy.NamespaceLabel, "tenant")
			want := policies.Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{evil}}}
			want.Pods = append(want.Pods, policy.Pod{Namespace: "tenant", Name: "p", Node: "here", Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.0")}})
			for i := range 10 {
				namespace := fmt.Sprint("team", i)
				p := internet(tier, namespace, 12)
				p.Subject.Namespaces = selects(policy.NamespaceLabel, namespace)
				if p.Tier != policy.Namespaced {
					p.Namespace, p.Name = "", namespace
				}
				want.Policies = append(want.Policies, p)
				want.Pods = append(want.Pods, policy.Pod{Namespace: namespace, Name: "p", Node: "here", Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})}})
			}
			rows := &compiling{}
			full, lost, err := new(Shedder).Apply(t.Context(), rows, "here", want)
			if err != nil || lost == nil || len(full) != 1 || full[0].Namespace != "tenant" {
				t.Errorf("%v, %v, %v", full, lost, err)
			}
		})
	}
}

// compiling compiles policies, has room for as many ports as the datapath, and keeps none.
type compiling struct {
	Policies
	last policies.Set
}

func (c *compiling) Apply(_ context.Context, _ service.Owner, want policies.Set) (policies.Result, error) {
	s := want.Snapshot
	s.Node = "here"
	c.last = want
	rows, err := policy.Compile(s, policy.Rows{})
	err = blame.Explain(err)
	if full := (&objects.FullError{Map: "policy_ports", Size: 65536}); err == nil && len(rows.Ports) > int(full.Size) {
		err = full
	}
	return policies.Result{}, err
}
