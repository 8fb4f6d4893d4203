// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mustang/internal/agent/status"
	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/rtnl"
	"mustang/internal/service/manifest"
	"mustang/internal/testkit"
)

// announced notes the addresses for which a node answers.
type announced struct {
	sync.Mutex
	cluster     string
	node, owned []netip.Addr
	conflicts   map[netip.Addr]string
	disturbed   chan struct{}
}

func (a *announced) Apply(cluster string, node, owned []netip.Addr) (map[netip.Addr]string, error) {
	a.Lock()
	defer a.Unlock()
	a.cluster, a.node, a.owned = cluster, node, slices.SortedFunc(slices.Values(owned), netip.Addr.Compare)
	return a.conflicts, nil
}

func (a *announced) Watch(context.Context) (<-chan struct{}, error) { return a.disturbed, nil }

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

// balance runs an agent with pools, on a Ready node with pods in one of them.
func balance(t *testing.T, s *kubetest.Server, rows *table, a *announced) {
	t.Helper()
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", `"podCIDRs": ["192.0.2.8/29"]`,
		`, "conditions": [{"type": "Ready", "status": "True"}]`))
	start(t, s, rows, func(o *Options) {
		o.Announcer = a
		o.Pools = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/28"), netip.MustParsePrefix("2001:db8::/126")}
	})
}

// TestAddressesOfPools gives Services the lowest free addresses, or the addresses that they request, until the pool is
// full. A Service that changes its type leaves its address to another.
func TestAddressesOfPools(t *testing.T) {
	t.Parallel()
	s, rows, a := kubetest.Start(t), newTable(), &announced{}
	put := func(name, created, spec, ingress string) { s.Put(t, services, balancer(name, created, spec, ingress)) }
	put("cluster", "01", `"clusterIP": "192.0.2.4"`, "")
	put("foreign", "02", balancing, `{"ip": "198.51.100.1"}`)
	put("classed", "03", balancing+`, "loadBalancerClass": "example.org/other"`, "")
	put("kept", "05", balancing, `{"ip": "192.0.2.6", "ipMode": "VIP"}`)
	put("dual", "06", `"type": "LoadBalancer", "loadBalancerClass": "mustang", "ipFamilies": ["IPv6", "IPv4"]`, "")
	put("wants", "07", balancing+`, "loadBalancerIP": "192.0.2.7"`, "")
	put("taken", "08", balancing+`, "loadBalancerIP": "192.0.2.6"`, "")
	put("outside", "09", balancing+`, "loadBalancerIP": "192.0.2.16"`, "")
	put("node", "10", balancing+`, "loadBalancerIP": "192.0.2.1"`, "")
	put("first", "11", balancing+`, "loadBalancerIP": "192.0.2.0"`, "")
	s.Put(t, services, strings.Replace(balancer("external", "12",
		`"clusterIP": "10.96.0.1", "externalIPs": ["192.0.2.2", "192.0.2.3", "192.0.2.5"]`, ""), "80", "22", 1))
	balance(t, s, rows, a)
	want := map[string]string{"classed": "", "kept": "192.0.2.6", "dual": "2001:db8::1 192.0.2.2", "wants": "192.0.2.7",
		"taken": "", "outside": "", "node": "", "first": ""}
	a.wants(t, s, "[192.0.2.1] [192.0.2.2 192.0.2.6 192.0.2.7 2001:db8::1]", want)
	put("early", "20", balancing, "")
	put("last", "21", balancing, "")
	want["early"], want["last"] = "192.0.2.3", "192.0.2.5"
	a.wants(t, s, "[192.0.2.1] [192.0.2.2 192.0.2.3 192.0.2.5 192.0.2.6 192.0.2.7 2001:db8::1]", want)
	put("late", "22", balancing, "")
	put("later", "23", balancing, "")
	wantsEvents(t, s, map[string]int{
		`"message":"pool 192.0.2.0/28 is full"`:                                                     2,
		`"message":"spec.loadBalancerIP: Service shop/kept already has 192.0.2.6"`:                  1,
		`"message":"spec.loadBalancerIP: 192.0.2.16 is not in a pool"`:                              1,
		`"message":"spec.loadBalancerIP: 192.0.2.1 is an address of a node, a pod or a cluster IP"`: 1,
		`"message":"spec.loadBalancerIP: 192.0.2.0 is the first or last address of a subnet"`:       1,
		"external IP 192.0.2.5 is within the pool 192.0.2.0/28 of load balancers":                   1,
	})
	testkit.Eventually(t, time.Minute, func() error {
		if text := rows.String(); !strings.Contains(text, "10.96.0.1:22/tcp") {
			return fmt.Errorf("the cluster IP is not served: %s", text)
		}
		return nil
	})
	testkit.Check(t, !strings.Contains(rows.String(), "192.0.2.5:22/tcp"), "an external IP in the pool: %s", rows)
	put("kept", "05", `"type": "ClusterIP"`, `{"ip": "192.0.2.6", "ipMode": "VIP"}`)
	want["kept"], want["taken"], want["late"] = "", "192.0.2.6", ""
	a.wants(t, s, "[192.0.2.1] [192.0.2.2 192.0.2.3 192.0.2.5 192.0.2.6 192.0.2.7 2001:db8::1]", want)
	s.Delete(services, "shop", "dual")
	want["late"] = "192.0.2.2"
	delete(want, "dual")
	a.wants(t, s, "[192.0.2.1] [192.0.2.2 192.0.2.3 192.0.2.5 192.0.2.6 192.0.2.7]", want)
	if have := s.Object(services, "shop", "foreign"); !strings.Contains(have, `"ingress":[{"ip":"198.51.100.1"}]`) {
		t.Errorf("the Service of another controller is %s", have)
	}
}

// TestServiceOfAnotherProxyHoldsItsAddress has a Service leave Mustang for another proxy and come back. Meanwhile the
// node does not answer for its address, and no other Service gets it.
func TestServiceOfAnotherProxyHoldsItsAddress(t *testing.T) {
	t.Parallel()
	s, a := kubetest.Start(t), &announced{}
	old := balancer("old", "01", balancing, `{"ip": "192.0.2.2", "ipMode": "VIP"}`)
	s.Put(t, services, old)
	balance(t, s, newTable(), a)
	a.wants(t, s, "[192.0.2.1] [192.0.2.2]", nil)
	for label, kind := range map[string]string{"service-proxy-name": "LoadBalancer", "headless": "ClusterIP"} {
		labels := `"labels": {"service.kubernetes.io/` + label + `": "other"}, `
		other := strings.Replace(old, `"name":`, labels+`"name":`, 1)
		s.Put(t, services, strings.Replace(other, "LoadBalancer", kind, 1)) // the server leaves the status
		a.wants(t, s, "[192.0.2.1] []", nil)
		s.Put(t, services, balancer("new", "02", balancing, ""))
		a.wants(t, s, "[192.0.2.1] [192.0.2.3]", map[string]string{"old": "192.0.2.2", "new": "192.0.2.3"})
		s.Put(t, services, old)
		a.wants(t, s, "[192.0.2.1] [192.0.2.2 192.0.2.3]", map[string]string{"old": "192.0.2.2", "new": "192.0.2.3"})
		s.Delete(services, "shop", "new")
		a.wants(t, s, "[192.0.2.1] [192.0.2.2]", nil)
	}
}

// TestUnreadyEndpointsOwnAddresses has a Service with externalTrafficPolicy Local publish endpoints that are not ready:
// their node owns its address.
func TestUnreadyEndpointsOwnAddresses(t *testing.T) {
	t.Parallel()
	s, a := kubetest.Start(t), &announced{}
	s.Put(t, services, balancer("web", "01", `"externalTrafficPolicy": "Local", "publishNotReadyAddresses": true, `+
		balancing, `{"ip": "192.0.2.2", "ipMode": "VIP"}`))
	slice := sliceOf("web-1", "web", "z", "10.1.1.5")
	s.Put(t, endpointSlices, strings.Replace(slice, `"hints"`,
		`"nodeName": "here", "conditions": {"ready": false}, "hints"`, 1))
	balance(t, s, newTable(), a)
	a.wants(t, s, "[192.0.2.1] [192.0.2.2]", nil)
}

// TestChangedDevicesAreAnnounced has the devices of a node change, and another host use an address, which an event of
// the Service names.
func TestChangedDevicesAreAnnounced(t *testing.T) {
	t.Parallel()
	s, a := kubetest.Start(t), &announced{disturbed: make(chan struct{})}
	s.Put(t, services, balancer("web", "01", balancing, `{"ip": "192.0.2.2", "ipMode": "VIP"}`))
	s.Put(t, "/api/v1/namespaces", `{"apiVersion": "v1", "kind": "Namespace",
"metadata": {"name": "kube-system", "uid": "1"}}`)
	balance(t, s, newTable(), a)
	a.wants(t, s, "[192.0.2.1] [192.0.2.2]", nil)
	a.Lock()
	testkit.Check(t, a.cluster == "1", "the cluster is %q, want the UID of its Namespace", a.cluster)
	a.conflicts = map[netip.Addr]string{netip.MustParseAddr("192.0.2.2"): "host X uses it"}
	a.Unlock()
	select {
	case a.disturbed <- struct{}{}:
	case <-time.After(time.Minute):
		t.Fatal("the agent does not watch devices")
	}
	wantsEvents(t, s, map[string]int{`"message":"node here: load-balancer address 192.0.2.2: host X uses it"`: 1})
}

// TestRefusedAddressesDelayNoOthers has a webhook refuse the addresses of old Services, which events of these name.
func TestRefusedAddressesDelayNoOthers(t *testing.T) {
	t.Parallel()
	s, a := kubetest.Start(t), &announced{}
	s.Before = func(w http.ResponseWriter, r *http.Request) bool {
		refuses := r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/services/refused")
		if refuses {
			_, after, _ := strings.Cut(r.URL.Path, "refused")
			code := []int{403, 400, 500}[after[0]%3] // 403 is the first's; without a code it is 400, and 500 if it is down
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"kind": "Status", "status": "Failure", "code": %d, "message": "denied by a webhook"}`, code)
		}
		return refuses
	}
	for i := range maxUnset {
		s.Put(t, services, balancer(fmt.Sprint("refused", i), "01", balancing, ""))
	}
	s.Put(t, services, balancer("web", "02", balancing, ""))
	start(t, s, newTable(), func(o *Options) {
		o.Announcer, o.Pools = a, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/27")}
	})
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", "", `, "conditions": [{"type": "Ready", "status": "True"}]`))
	a.wants(t, s, "[192.0.2.1] [192.0.2.12]", map[string]string{"web": "192.0.2.12"})
	wantsEvents(t, s, map[string]int{
		`"message":"set status.loadBalancer of Service shop/refused0: denied by a webhook"`: 1})
}

// TestNodesTakeNoAddresses has Nodes claim addresses of a pool, as a kubelet can: as their own or as a range of pods.
// The Service keeps its address, and the node serves it. A second Service gets an address that no Node claims.
func TestNodesTakeNoAddresses(t *testing.T) {
	t.Parallel()
	for claim, evil := range map[string][]string{
		"addresses": {nodeAt("evil", "192.0.2.2", "", ""), nodeAt("worse", "192.0.2.3", "", "")},
		"range":     {nodeAt("evil", "198.51.100.9", `"podCIDRs": ["192.0.2.2/31"]`, "")},
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			s, a, rows := kubetest.Start(t), &announced{}, newTable()
			for _, n := range evil {
				s.Put(t, nodes, n)
			}
			s.Put(t, services, balancer("web", "01", `"clusterIP": "10.96.0.9", `+balancing,
				`{"ip": "192.0.2.2", "ipMode": "VIP"}`))
			s.Put(t, services, balancer("new", "02", balancing, ""))
			balance(t, s, rows, a)
			a.wants(t, s, "[192.0.2.1] [192.0.2.2 192.0.2.4]", map[string]string{"web": "192.0.2.2", "new": "192.0.2.4"})
			testkit.Eventually(t, time.Minute, func() error {
				if text := rows.String(); !strings.Contains(text, "192.0.2.2:80/tcp") {
					return fmt.Errorf("the address is not served: %s", text)
				}
				return nil
			})
		})
	}
}

// TestGivenAddressesStay has a Service with an address that the agent has set, and does not read yet. A Service that is
// deleted and made again gets it anew.
func TestGivenAddressesStay(t *testing.T) {
	t.Parallel()
	a := New(Options{Node: "here", Cluster: testkit.Must(kube.Connect(kubetest.Start(t).Kubeconfig(t)))(t),
		State: status.NewTracker(), Log: slog.New(slog.DiscardHandler),
		Pools: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/28")}})
	put := func(name, created, ingress string) {
		e := kube.Event{Kind: kube.Services, Namespace: "shop", Name: name,
			Object: []byte(balancer(name, created, balancing, ingress))}
		testkit.Succeed(t, a.services.on(e))
	}
	put("new", "02", "")
	given := map[manifest.Name]kube.Ingress{}
	assign := func(want string) {
		t.Helper()
		changes, _ := a.pooled(given).assign()
		testkit.Check(t, fmt.Sprint(changes) == want, "the changes are %v, want %s", changes, want)
		for _, c := range changes {
			given[manifest.Name{Namespace: c.Namespace, Name: c.Name}] = c
		}
	}
	assign("[{shop new  [] [192.0.2.1]}]")
	again := strings.Replace(balancer("new", "02", balancing, ""), `"name"`, `"uid": "2", "name"`, 1)
	testkit.Succeed(t, a.services.on(kube.Event{Kind: kube.Services, Namespace: "shop", Name: "new",
		Object: []byte(again)}))
	assign("[{shop new 2 [] [192.0.2.1]}]")
	put("old", "01", "")
	assign("[{shop old  [] [192.0.2.2]}]")
	put("new", "02", `{"ip": "192.0.2.1"}`)
	put("old", "01", `{"ip": "192.0.2.2"}`)
	assign("[]")
	testkit.Check(t, len(given) == 0, "all is read, and given are %v", given)
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
	former := netip.MustParseAddr("198.51.100.1") // of a pool that is gone
	for addr := pool.Addr().Next(); addr != rtnl.LastAddress(pool); addr = addr.Next() {
		n := manifest.Name{Namespace: "shop", Name: addr.String()}
		p.holders[addr] = n
		p.services = append(p.services, manifest.LoadBalancer{Name: n, Active: true, Has: []netip.Addr{former, addr}})
	}
	owners := func() map[netip.Addr]string {
		all := map[netip.Addr]string{}
		p.able = able(of)
		for name := range of {
			for _, addr := range p.owned(name) {
				testkit.Check(t, all[addr] == "", "%v is owned by %s and %s", addr, all[addr], name)
				all[addr] = name
			}
		}
		return all
	}
	before, counts := owners(), map[string]int{}
	testkit.Check(t, len(before) == 254, "%d of 254 addresses have an owner", len(before))
	for _, name := range before {
		counts[name]++
	}
	for i := range 4 {
		n := counts[fmt.Sprint("node", i)]
		testkit.Check(t, n >= 32 && n <= 128, "node%d owns %d of 254 addresses", i, n)
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
	of = map[string]kube.Node{"not-ready": {}, "leaving": {Leaving: true}, "excluded": {Excluded: true}}
	for i := range p.services {
		p.services[i].Nodes = nil
	}
	for addr, name := range owners() {
		testkit.Check(t, name == "not-ready", "without a Ready node, %v is owned by %s", addr, name)
	}
	testkit.Check(t, len(owners()) == 254, "without a Ready node %d of 254 addresses have an owner", len(owners()))
}
