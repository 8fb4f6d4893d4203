// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/policy/policytest"
	"mustang/internal/service"
)

// denyList is a ClusterNetworkPolicy that denies so many ranges in both directions.
func denyList(ranges int) policy.Policy {
	deny := policy.Rule{Action: policy.Deny}
	for i := range ranges {
		at := netip.AddrFrom4([4]byte{45, byte(i >> 8), byte(i), 0})
		deny.Peers = append(deny.Peers, policy.Peer{Block: &policy.Block{CIDR: netip.PrefixFrom(at, 24)}})
	}
	return policy.Policy{Tier: policy.Admin, Name: "threats", Ingress: []policy.Rule{deny}, Egress: []policy.Rule{deny}}
}

// enters reports whether a stranger reaches a pod, and one of a denied range.
func (want *onNode) enters(t *testing.T, pod policy.Pod) (stranger, denied bool) {
	t.Helper()
	now, err := want.datapath.Policies().Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for from, enters := range map[string]*bool{"192.0.2.1": &stranger, "45.0.7.1": &denied} {
		_, in, err := policy.Explain(now, policy.Flow{Source: netip.MustParseAddr(from), Destination: pod.Addresses[0], Protocol: service.TCP, Port: 80})
		if err != nil {
			t.Fatal(err)
		}
		*enters = in.Allow
	}
	return stranger, denied
}

// TestClusterListTimesRuleSets has a ClusterNetworkPolicy with a long list, of which each rule set of the node has all rows, and a tenant with many rule sets:
// the tenant loses them, whether or not its policies have rules, nobody else loses any, and new policies are in force.
func TestClusterListTimesRuleSets(t *testing.T) {
	for _, rules := range []bool{true, false} {
		t.Run(fmt.Sprint("rules ", rules), func(t *testing.T) {
			want := newOnNode(t)
			want.add(t, "shop", 3)
			shop := want.Pods[2]
			last := want.Policies[2]
			want.Policies = append(want.Policies[:2], denyList(3000))
			n := len(want.Policies)
			want.add(t, "tenant", 60)
			for i := n; i < len(want.Policies) && !rules; i++ {
				want.Policies[i].Ingress = nil
			}
			for i := n; i < len(want.Policies); i++ {
				want.Policies[i].IsolatesEgress = true
			}
			s := &Shedder{}
			apply := func() {
				t.Helper()
				full, lost, err := s.Apply(t.Context(), want.datapath.Policies(), shop.Node, want.Set)
				if err != nil || lost == nil {
					t.Fatal(lost, err)
				}
				seen := map[kube.Warning]bool{}
				for _, w := range full {
					if w.Namespace != "tenant" {
						t.Errorf("%s/%s has no rules in force", w.Namespace, w.Name)
					}
					if w.Text = ""; seen[w] {
						t.Errorf("%s is told twice", w.Name)
					}
					seen[w] = true
				}
			}
			apply()
			if stranger, denied := want.enters(t, shop); !stranger || denied {
				t.Errorf("without a policy: a stranger enters: %t, one of a denied range: %t", stranger, denied)
			}
			want.Policies = append(want.Policies, last)
			want.Policies[len(want.Policies)-1].Ingress = nil
			apply()
			if stranger, _ := want.enters(t, shop); stranger {
				t.Error("a new policy is not in force")
			}
		})
	}
}

// TestClusterListTimesNamespaces has a list of which the rule sets of all namespaces have too many rows, whatever their policies say: the pods of all are isolated.
func TestClusterListTimesNamespaces(t *testing.T) {
	want := newOnNode(t)
	want.Policies = append(want.Policies, denyList(4000))
	for i := range 40 {
		want.add(t, fmt.Sprint("shop", i), 1)
		p := &want.Policies[len(want.Policies)-1]
		p.IsolatesEgress = i%2 == 0
	}
	want.add(t, "open", 1)
	open := want.Pods[len(want.Pods)-1]
	want.Policies = want.Policies[:len(want.Policies)-1]
	s, to := &Shedder{}, &counting{Policies: want.datapath.Policies()}
	for range 2 {
		to.calls = 0
		full, lost, err := s.Apply(t.Context(), to, open.Node, want.Set)
		if err != nil || lost == nil || len(full) != 40 || to.calls > 2 {
			t.Fatalf("%d calls, %d policies, %v, %v", to.calls, len(full), lost, err)
		}
		if stranger, denied := want.enters(t, want.Pods[0]); stranger || denied {
			t.Errorf("isolated: a stranger enters: %t, one of a denied range: %t", stranger, denied)
		}
		if stranger, denied := want.enters(t, open); !stranger || denied {
			t.Errorf("without a policy: a stranger enters: %t, one of a denied range: %t", stranger, denied)
		}
	}
}

// TestClusterListByItself has a list of which there are too many rows for the only rule set: an event says so of its policy, and that nothing is in force of what
// has changed.
func TestClusterListByItself(t *testing.T) {
	want := newOnNode(t)
	want.add(t, "shop", 3)
	want.Policies = append(want.Policies, policy.Policy{Tier: policy.Admin, Name: "threats", Ingress: []policy.Rule{{Action: policy.Deny, Peers: policytest.Addresses("", "", 0, 58_000).Ingress[0].Peers}}})
	full, lost, err := new(Shedder).Apply(t.Context(), want.datapath.Policies(), want.Pods[0].Node, want.Set)
	if err == nil || lost != nil || len(full) == 0 || full[len(full)-1].Name != "threats" {
		t.Errorf("%v, %v, %v", full, lost, err)
	}
	for _, w := range full {
		if !strings.HasPrefix(w.Text, notInForce) {
			t.Errorf("%s/%s: %s", w.Namespace, w.Name, w.Text)
		}
	}
}

// TestAddressesOfManyNamespaces has namespaces with more ranges together than a map has room for: as many lose rules as have to, in few steps.
func TestAddressesOfManyNamespaces(t *testing.T) {
	want := newOnNode(t)
	want.add(t, "shop", 5)
	for i := range 20 {
		name := fmt.Sprint("tenant", i)
		want.add(t, name, 1)
		p := &want.Policies[len(want.Policies)-1]
		p.Ingress = policytest.Addresses(name, "list", i, 5000).Ingress
	}
	to := &counting{Policies: want.datapath.Policies()}
	full, lost, err := new(Shedder).Apply(t.Context(), to, want.Pods[0].Node, want.Set)
	if err != nil || lost == nil || len(full) < 8 || len(full) > 12 || to.calls > 3 {
		t.Errorf("%d calls, %d policies lose rules, %v, %v", to.calls, len(full), lost, err)
	}
	for _, w := range full {
		if w.Namespace == "shop" {
			t.Errorf("%s/%s has no rules in force", w.Namespace, w.Name)
		}
	}
}

// TestNumbersOfAPort has pods of a tenant give a port that others' rules name very many numbers: they count as few, and nobody loses rules.
func TestNumbersOfAPort(t *testing.T) {
	want := newOnNode(t)
	want.add(t, "shop", 60)
	for i := range want.Policies {
		p := &want.Policies[i]
		p.IsolatesIngress, p.Ingress, p.IsolatesEgress = false, nil, true
		p.Egress = []policy.Rule{{Peers: []policy.Peer{{Pods: &policy.PodSelector{}}}, Ports: []policy.Port{{Protocol: service.TCP, Name: "metrics"}}}}
	}
	far := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}) }
	for i := range 4000 {
		number := uint16(1000 + i)
		if i >= 3990 { // as most pods have it
			number = 9999
		}
		want.Pods = append(want.Pods, policy.Pod{
			Namespace: "tenant", Name: fmt.Sprint("f", i), Ports: []policy.NamedPort{{Name: "metrics", Protocol: service.TCP, Port: number}}, Addresses: []netip.Addr{far(i)},
		})
	}
	from := want.Pods[0]
	ingress := want.Set
	ingress.Policies = []policy.Policy{{
		Tier: policy.Namespaced, Namespace: "tenant", Name: "own", IsolatesIngress: true, Ingress: []policy.Rule{{Ports: []policy.Port{{Protocol: service.TCP, Name: "metrics"}}}},
	}}
	if cut := ingress.Trim(from.Node); len(cut) > 0 {
		t.Errorf("%d pods lack ports that their own policies name", len(cut))
	}
	if cut := want.Trim(from.Node); len(cut) < 3900 || len(cut) >= 3990 {
		t.Errorf("%d pods lack ports", len(cut))
	}
	full, lost, err := new(Shedder).Apply(t.Context(), want.datapath.Policies(), from.Node, want.Set)
	if err != nil || lost != nil || len(full) > 0 {
		t.Fatalf("%d policies lose rules: %v, %v", len(full), lost, err)
	}
	now, err := want.datapath.Policies().Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for port, allowed := range map[uint16]bool{9999: true, 80: false} {
		out, _, err := policy.Explain(now, policy.Flow{Source: from.Addresses[0], Destination: far(3995), Protocol: service.TCP, Port: port})
		if err != nil || out.Allow != allowed {
			t.Errorf("port %d: %v, %v", port, out, err)
		}
	}
}

// TestRangesInClusterList has a tenant bring very many ranges inside those of a list of the cluster, which all rule sets of the node meet by that list alone: the
// tenant loses rules, and whoever was there before does not.
func TestRangesInClusterList(t *testing.T) {
	for _, c := range []struct{ namespaces, pods, list, tenants int }{{1, 60, 1000, 1}, {6, 12, 500, 1}, {60, 1, 1000, 1}, {30, 1, 1000, 30}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			want := newOnNode(t)
			for i := range c.namespaces {
				want.add(t, fmt.Sprint("shop", i), c.pods)
			}
			want.Policies = append(want.Policies, denyList(c.list))
			for n := range c.tenants {
				want.add(t, fmt.Sprint("tenant", n), 1)
				list := &want.Policies[len(want.Policies)-1]
				list.Ingress[0].Peers = nil
				for k := range 3500 / c.tenants {
					i := n*(3500/c.tenants) + k
					block := netip.PrefixFrom(netip.AddrFrom4([4]byte{45, byte(i >> 12), byte(i >> 4), byte(i << 4)}), 28)
					list.Ingress[0].Peers = append(list.Ingress[0].Peers, policy.Peer{Block: &policy.Block{CIDR: block}})
				}
			}
			to := &counting{Policies: want.datapath.Policies()}
			full, lost, err := new(Shedder).Apply(t.Context(), to, want.Pods[0].Node, want.Set)
			if err != nil || lost == nil || to.calls > 6 {
				t.Errorf("%d calls, %v, %v", to.calls, lost, err)
			}
			for _, w := range full {
				if !strings.HasPrefix(w.Namespace, "tenant") {
					t.Fatalf("%s/%s has no rules in force", w.Namespace, w.Name)
				}
			}
		})
	}
}
