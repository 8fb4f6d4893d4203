// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/service/manifest"
	"mustang/internal/testkit"
)

// announced notes the addresses for which a node answers.
type announced struct {
	sync.Mutex
	node, owned []netip.Addr
}

func (a *announced) Apply(node, owned []netip.Addr) error {
	a.Lock()
	defer a.Unlock()
	a.node, a.owned = node, owned
	return nil
}

// wants waits until Services have addresses in their status, by name, and the node answers at and for others.
func (a *announced) wants(t *testing.T, s *kubetest.Server, answers string, want map[string]string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		for name, ips := range want {
			have := s.Object(services, "shop", name)
			var ingress []string
			for ip := range strings.FieldsSeq(ips) {
				ingress = append(ingress, fmt.Sprintf(`{"ip":%q,"ipMode":"VIP"}`, ip))
			}
			text := `"ingress":[` + strings.Join(ingress, ",") + "]"
			if !strings.Contains(have, text) && (ips != "" || strings.Contains(have, `"ip":`)) {
				return fmt.Errorf("Service %s has no %s: %s", name, text, have)
			}
		}
		a.Lock()
		defer a.Unlock()
		slices.SortFunc(a.owned, netip.Addr.Compare)
		if have := fmt.Sprint(a.node, a.owned); have != answers {
			return fmt.Errorf("the node answers at and for %s, want %s", have, answers)
		}
		return nil
	})
}

func balancer(name, created, spec, ingress string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": %q,
"creationTimestamp": "2026-01-01T00:00:%sZ"}, "spec": {"ports": [{"port": 80}], %s},
"status": {"loadBalancer": {"ingress": [%s]}}}`, name, created, spec, ingress)
}

const balancing = `"type": "LoadBalancer", "ipFamilies": ["IPv4"]`

// TestAddressesOfPools has Services get the lowest free addresses, or those that they want, until the pool is full. One
// that changes its type leaves its address to another.
func TestAddressesOfPools(t *testing.T) {
	t.Parallel()
	s, a := kubetest.Start(t), &announced{}
	put := func(name, created, spec, ingress string) { s.Put(t, services, balancer(name, created, spec, ingress)) }
	pool := func(o *Options) {
		o.Announcer = a
		o.Pools = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/29"), netip.MustParsePrefix("2001:db8::/126")}
	}
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", `"podCIDRs": ["192.0.2.2/31"]`,
		`, "conditions": [{"type": "Ready", "status": "True"}]`))
	put("cluster", "01", `"clusterIP": "192.0.2.4"`, "")
	put("foreign", "02", balancing, `{"ip": "198.51.100.1"}`)
	put("classed", "03", balancing+`, "loadBalancerClass": "example.org/other"`, "")
	put("kept", "05", balancing, `{"ip": "192.0.2.6", "ipMode": "VIP"}`)
	put("dual", "06", `"type": "LoadBalancer", "loadBalancerClass": "mustang", "ipFamilies": ["IPv6", "IPv4"]`, "")
	put("wants", "07", balancing+`, "loadBalancerIP": "192.0.2.7"`, "")
	put("taken", "08", balancing+`, "loadBalancerIP": "192.0.2.6"`, "")
	put("outside", "09", balancing+`, "loadBalancerIP": "192.0.2.8"`, "")
	put("node", "10", balancing+`, "loadBalancerIP": "192.0.2.1"`, "")
	start(t, s, newTable(), pool)
	want := map[string]string{"classed": "", "kept": "192.0.2.6", "dual": "2001:db8:: 192.0.2.0", "wants": "192.0.2.7",
		"taken": "", "outside": "", "node": ""}
	a.wants(t, s, "[192.0.2.1] [192.0.2.0 192.0.2.6 192.0.2.7 2001:db8::]", want)
	put("last", "20", balancing, "")
	want["last"] = "192.0.2.5"
	a.wants(t, s, "[192.0.2.1] [192.0.2.0 192.0.2.5 192.0.2.6 192.0.2.7 2001:db8::]", want)
	put("late", "21", balancing, "")
	put("later", "22", balancing, "")
	wantsEvents(t, s, map[string]int{
		`"message":"pool 192.0.2.0/29 full: 8 of 8 addresses"`:                                      2,
		`"message":"spec.loadBalancerIP: Service shop/kept already has 192.0.2.6"`:                  1,
		`"message":"spec.loadBalancerIP: 192.0.2.8 is not in a pool"`:                               1,
		`"message":"spec.loadBalancerIP: 192.0.2.1 is an address of a node, a pod or a cluster IP"`: 1,
	})
	put("kept", "05", `"type": "ClusterIP"`, `{"ip": "192.0.2.6", "ipMode": "VIP"}`)
	want["kept"], want["taken"], want["late"] = "", "192.0.2.6", ""
	a.wants(t, s, "[192.0.2.1] [192.0.2.0 192.0.2.5 192.0.2.6 192.0.2.7 2001:db8::]", want)
	s.Delete(services, "shop", "dual")
	want["late"] = "192.0.2.0"
	delete(want, "dual")
	a.wants(t, s, "[192.0.2.1] [192.0.2.0 192.0.2.5 192.0.2.6 192.0.2.7]", want)
	if have := s.Object(services, "shop", "foreign"); !strings.Contains(have, `"ingress":[{"ip":"198.51.100.1"}]`) {
		t.Errorf("the Service of another controller is %s", have)
	}
}

// TestOneNodeOwnsAnAddress has a table of nodes that can serve addresses or not.
func TestOneNodeOwnsAnAddress(t *testing.T) {
	t.Parallel()
	of := map[string]kube.Node{"not-ready": {}, "leaving": {Ready: true, Leaving: true},
		"excluded": {Ready: true, Excluded: true}}
	for i := range 4 {
		of[fmt.Sprint("node", i)] = kube.Node{Ready: true}
	}
	pool := netip.MustParsePrefix("192.0.2.0/24")
	p := &pools{prefixes: []netip.Prefix{pool}, holders: map[netip.Addr]manifest.Name{}}
	for addr := pool.Addr(); pool.Contains(addr); addr = addr.Next() {
		n := manifest.Name{Namespace: "shop", Name: addr.String()}
		p.holders[addr] = n
		p.services = append(p.services, manifest.LoadBalancer{Name: n, Active: true, Has: []netip.Addr{addr}})
	}
	owners := func() map[netip.Addr]string {
		all := map[netip.Addr]string{}
		for name := range of {
			for _, addr := range p.owned(name, of) {
				testkit.Check(t, all[addr] == "", "%v is owned by %s and %s", addr, all[addr], name)
				all[addr] = name
			}
		}
		return all
	}
	before, counts := owners(), map[string]int{}
	testkit.Check(t, len(before) == 256, "%d of 256 addresses have an owner", len(before))
	for _, name := range before {
		counts[name]++
	}
	for i := range 4 {
		n := counts[fmt.Sprint("node", i)]
		testkit.Check(t, n >= 32 && n <= 128, "node%d owns %d of 256 addresses", i, n)
	}
	of["node1"] = kube.Node{}
	for addr, name := range owners() {
		testkit.Check(t, name != "node1" && (before[addr] == name || before[addr] == "node1"),
			"%v went from %s to %s", addr, before[addr], name)
	}
	for i := range p.services {
		p.services[i].Nodes = map[string]bool{"node2": true, "excluded": true}
	}
	for addr, name := range owners() {
		testkit.Check(t, name == "node2", "%v, with an endpoint on node2 alone, is owned by %s", addr, name)
	}
	delete(of, "node2")
	testkit.Check(t, len(owners()) == 0, "without a node with an endpoint: %v", owners())
}
