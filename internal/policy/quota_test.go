// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"mustang/internal/policy"
	"mustang/internal/testkit"
)

// wide allows all of its many pods a few ranges, and calls of all addresses but one.
func wide(namespace string, except int) policy.Policy {
	p := internet(policy.Namespaced, namespace, fmt.Sprint(except), 1)
	out := netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, byte(except >> 8), byte(except)}), 32)
	p.Egress[0].Peers[0].Block.Except = []netip.Prefix{out}
	p.Subject = inNamespace(namespace)
	return p
}

// TestQuota has one namespace after the other make too much of one thing, beside a shop whose many rule sets have rules
// for all addresses and all pods.
func TestQuota(t *testing.T) {
	quota := policy.Quota{Verdicts: 2000, Ports: 500, Ranges: 300, Numbers: 1000, Overlaps: 2000, Work: 1 << 18}
	apps := names(20)
	everyone := policy.Rule{Action: policy.Accept, Peers: []policy.Peer{{Pods: &policy.PodSelector{}}}}
	var shop []policy.Policy
	for _, app := range apps {
		p := internet(policy.Namespaced, "shop", app, 3)
		p.Ingress, p.IsolatesIngress = []policy.Rule{everyone}, true
		shop = append(shop, p)
	}
	many := func(of func(i int) policy.Policy, n int) (all []policy.Policy) {
		for i := range n {
			all = append(all, of(i))
		}
		return all
	}
	values := policy.Requirement{Key: "pod", Operator: "In"}
	for i := range 900 {
		values.Values = append(values.Values, fmt.Sprint("p", i))
	}
	values.Sort()
	asks := policy.Policy{Tier: policy.Namespaced, Namespace: "tenant", Name: "asks", IsolatesIngress: true,
		Subject: inNamespace("tenant")}
	asks.Ingress = []policy.Rule{
		{Peers: []policy.Peer{
			{Pods: &policy.PodSelector{Pods: policy.Selector{Requirements: []policy.Requirement{values}}}}}}}
	ports := func(i int) policy.Policy {
		p := internet(policy.Namespaced, "tenant", "b", 1)
		p.Name, p.Egress[0].Ports = fmt.Sprint("ports", i), slices.Repeat(p.Egress[0].Ports, 17_000)
		return p
	}
	list := addresses("", "list", 0, 5000)
	list.Tier, list.Subject, list.IsolatesIngress = policy.Admin, policy.PodSelector{}, false
	for name, c := range map[string]struct {
		tenant []policy.Policy
		want   string // what the tenant has too many of; "": nothing
	}{
		"nothing":             {nil, ""},
		"few ranges":          {[]policy.Policy{addresses("tenant", "few", 0, 50)}, ""},
		"ranges":              {[]policy.Policy{addresses("tenant", "many", 0, 301)}, "301 of 300 ranges of addresses"},
		"ranges in rule sets": {[]policy.Policy{addresses("tenant", "many", 0, 200)}, "of 2,000 verdict rows"},
		"labels":              {[]policy.Policy{asks}, "of 2,000 verdict rows"},
		"numbers": {[]policy.Policy{internet(policy.Namespaced, "tenant", "b", 1001)},
			"of 1,000 numbers of rules and rule sets"},
		"without rules": {many(func(i int) policy.Policy { return addresses("tenant", fmt.Sprint(i), 0, 0) }, 1001),
			"of 1,000 numbers of rules and rule sets"},
		"ports": {[]policy.Policy{internet(policy.Namespaced, "tenant", "b", 600)}, "of 500 rows of ports"},
		"overlaps": {many(func(i int) policy.Policy { return wide("tenant", i) }, 100),
			"of 2,000 overlaps of ranges"},
		"work":                  {many(ports, 2), "262,145 of 262,144 units of compile work"},
		"a list of the cluster": {[]policy.Policy{list}, ""},
	} {
		s := on(append(c.tenant, shop...), map[string][]string{"shop": apps, "tenant": {"b"}})
		for i := range 900 {
			at := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
			s.Pods = append(s.Pods, policy.Pod{Namespace: "away", Name: fmt.Sprint(i), Labels: map[string]string{
				"pod": fmt.Sprint("p", i)}, Addresses: []netip.Addr{at}})
		}
		_, err := policy.Steps(s, policy.Rows{}, policy.Limits{Work: policy.MostWork, Quota: &quota})
		var over *policy.QuotaError
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want == "":
		case !errors.As(err, &over) || len(over.Over) != 1 || over.Over[0].Namespace != "tenant" ||
			!strings.Contains(over.Over[0].Error(), c.want):
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// TestQuotaBesideManyRuleSets has a namespace with a few ranges beside many rule sets of another for all addresses.
func TestQuotaBesideManyRuleSets(t *testing.T) {
	all, apps := []policy.Policy{addresses("shop", "few", 0, 100)}, names(200)
	for _, app := range apps {
		all = append(all, internet(policy.Namespaced, "crowd", app, 1))
	}
	quota := policy.Quota{Verdicts: 64*100 + 200, Ports: 500, Ranges: 300, Numbers: 1000, Overlaps: 2000, Work: 1 << 18}
	s := on(all, map[string][]string{"crowd": apps, "shop": {"b"}})
	_, err := policy.Steps(s, policy.Rows{}, policy.Limits{Work: policy.MostWork, Quota: &quota})
	testkit.Succeed(t, err)
}

// TestLimitsOfPolicy refuses policies that are too large, and accepts the policies of the measurements.
func TestLimitsOfPolicy(t *testing.T) {
	large := internet(policy.Namespaced, "shop", "", policy.MostPeers)
	err := large.Validate()
	testkit.Check(t, err == nil, "%v", err)
	keys := internet(policy.Namespaced, "shop", "", 1)
	keys.Subject.Pods.Labels = map[string]string{}
	for i := range policy.MostKeys + 1 {
		keys.Subject.Pods.Labels[fmt.Sprint("k", i)] = ""
	}
	except := wide("shop", 0)
	except.Egress[0].Peers[0].Block.Except = make([]netip.Prefix, policy.MostRanges)
	for i := range except.Egress[0].Peers[0].Block.Except {
		except.Egress[0].Peers[0].Block.Except[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}),
			32)
	}
	ports := internet(policy.Namespaced, "shop", "", 1)
	for range policy.MostPorts {
		ports.Egress[0].Ports = append(ports.Egress[0].Ports, ports.Egress[0].Ports[0])
	}
	empty := internet(policy.Namespaced, "shop", "", 1)
	empty.Egress = make([]policy.Rule, policy.MostRules+1)
	for want, p := range map[string]policy.Policy{
		"spec: 20,001 of 20,000 rules":               empty,
		"spec: 20,001 of 20,000 peers of rules":      internet(policy.Namespaced, "shop", "", policy.MostPeers+1),
		"spec: 20,001 of 20,000 ranges of addresses": except,
		"spec: 20,001 of 20,000 ports of rules":      ports,
		"spec: 65 of 64 label keys in selectors":     keys,
	} {
		err := p.Validate()
		testkit.Check(t, err != nil && err.Error() == want, "got %v, want %s", err, want)
	}
}

func inNamespace(name string) policy.PodSelector {
	return policy.PodSelector{Namespaces: policy.Selector{Labels: map[string]string{"kubernetes.io/metadata.name": name}}}
}

func internet(tier policy.Tier, namespace, app string, rules int) policy.Policy {
	p := policy.Policy{Tier: tier, Namespace: namespace, Name: "internet" + app, IsolatesEgress: tier == policy.Namespaced}
	if p.Subject = inNamespace(namespace); app != "" {
		p.Subject.Pods.Labels = map[string]string{"app": app}
	}
	for n := range rules {
		port := uint16(1000 + 2*n)
		p.Egress = append(p.Egress, policy.Rule{
			Action: policy.Accept, Ports: []policy.Port{{Protocol: 6, First: port, Last: port}},
			Peers: []policy.Peer{{Block: &policy.Block{CIDR: netip.MustParsePrefix("0.0.0.0/0")}}},
		})
	}
	if tier != policy.Namespaced {
		p.Namespace, p.Name = "", "internet-"+namespace
	}
	return p
}

// addresses returns a policy of as many addresses, from 20.net.0.0.
func addresses(namespace, name string, net, n int) policy.Policy {
	p := policy.Policy{Tier: policy.Namespaced, Namespace: namespace, Name: name, IsolatesIngress: true,
		Subject: inNamespace(namespace), Ingress: make([]policy.Rule, 1)}
	for i := range n {
		at := netip.AddrFrom4([4]byte{20, byte(net + i>>16), byte(i >> 8), byte(i)})
		p.Ingress[0].Peers = append(p.Ingress[0].Peers,
			policy.Peer{Block: &policy.Block{CIDR: netip.PrefixFrom(at, at.BitLen())}})
	}
	return p
}

func crossing(namespace, name string, ranges, ports int) policy.Policy {
	p := policy.Policy{Tier: policy.Namespaced, Namespace: namespace, Name: name, IsolatesIngress: true,
		Subject: inNamespace(namespace)}
	all := policy.Rule{Action: policy.Accept,
		Peers: []policy.Peer{{Block: &policy.Block{CIDR: netip.MustParsePrefix("20.0.0.0/8")}}}}
	for n := range ports {
		port := uint16(2*n + 1)
		all.Ports = append(all.Ports, policy.Port{Protocol: 6, First: port, Last: port})
	}
	p.Ingress = []policy.Rule{all}
	for n := range ranges {
		port := uint16(20000 + 2*n)
		p.Ingress = append(p.Ingress, policy.Rule{
			Action: policy.Accept, Ports: []policy.Port{{Protocol: 6, First: port, Last: port}},
			Peers: []policy.Peer{{Block: &policy.Block{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(n >> 8), byte(n),
				0}), 24)}}},
		})
	}
	return p
}

func on(policies []policy.Policy, apps map[string][]string) policy.Snapshot {
	s := policy.Snapshot{Node: "node", Policies: policies}
	for namespace, all := range apps {
		for _, app := range all {
			at := netip.AddrFrom4([4]byte{10, 0, byte(len(s.Pods) >> 8), byte(len(s.Pods))})
			s.Pods = append(s.Pods, policy.Pod{
				Namespace: namespace, Name: app, Node: "node", Labels: map[string]string{"app": app}, Addresses: []netip.Addr{at},
			})
		}
	}
	return s
}

func names(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(i))
	}
	return all
}
