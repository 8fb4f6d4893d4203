// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// manyPolicies are 1,000 pods of 100 applications in 10 namespaces, and 1,000 policies: each lets one application call another on a range
// of ports, and isolates it.
func manyPolicies() (s policy.Snapshot) {
	app := func(n int) policy.Selector {
		return policy.Selector{Labels: map[string]string{"app": fmt.Sprint(n % 100)}}
	}
	for n := range 1000 {
		namespace := fmt.Sprintf("n%d", n%10)
		s.Pods = append(s.Pods, policy.Pod{
			Namespace: namespace, Name: fmt.Sprint(n), Labels: map[string]string{"app": fmt.Sprint(n % 100)},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})},
		})
		s.Policies = append(s.Policies, policy.Policy{
			Tier: policy.Namespaced, Namespace: namespace, Name: fmt.Sprint(n), IsolatesIngress: true,
			Subject: policy.PodSelector{Namespaces: policy.Selector{Labels: map[string]string{policy.NamespaceLabel: namespace}}, Pods: app(n)},
			Ingress: []policy.Rule{{
				Peers: []policy.Peer{{Pods: &policy.PodSelector{Pods: app(n / 10)}}},
				Ports: []policy.Port{{Protocol: service.TCP, First: uint16(1000 + n), Last: uint16(1100 + n)}},
			}},
		})
	}
	return s
}

// TestManyPolicies applies 1,000 policies to 1,000 pods of one node, and then changes one policy, and adds one pod: these write what
// differs, and no more.
func TestManyPolicies(t *testing.T) {
	d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root", Sizes: objects.Sizes{Services: 128, Backends: 256, Connections: 1 << 12, Endpoints: 2048}})
	s := manyPolicies()
	var pods []Endpoint
	for i, pod := range s.Pods {
		pods = append(pods, Endpoint{ID: uint32(i + 1), IP: pod.Addresses[0], Host: true, IfIndex: 1000 + i})
	}
	if err := d.objects.OpenTables(); err != nil {
		t.Fatal(err)
	}
	if err := d.Endpoints().write(pods); err != nil {
		t.Fatal(err)
	}
	apply := func(what string, s policy.Snapshot) int {
		t.Helper()
		start := time.Now()
		r, err := d.Policies().Apply(t.Context(), service.CLI, policies.Set{Snapshot: s})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d rows, %v", what, r.Rows, time.Since(start))
		return r.Rows
	}
	all := apply("all", s)
	if all < 5000 {
		t.Errorf("%d rows: too few for 1,000 policies", all)
	}
	changed := s
	changed.Policies = append([]policy.Policy{}, s.Policies...)
	changed.Policies[500].Ingress = nil
	if n := apply("one policy changes", changed); n == 0 || n > all/10 {
		t.Errorf("a policy that changes writes %d of %d rows", n, all)
	}
	before := endpointRows(t, d)
	start := time.Now()
	more := []Endpoint{{ID: 2000, IP: netip.MustParseAddr("10.2.0.1"), Host: true, IfIndex: 5000}}
	known := policy.Pod{Namespace: "n3", Name: "more", Labels: map[string]string{"app": "13"}}
	err := d.objects.WithTables(t.Context(), func() error { return d.Endpoints().writeAdmitted(more, &known, d.Endpoints().write) })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a pod comes: %v", time.Since(start))
	after := endpointRows(t, d)
	if row := after[more[0].IP]; row.sets.Ingress == 0 {
		t.Error("the pod that came has no rules")
	}
	for ip, row := range before {
		if after[ip].sets != row.sets {
			t.Fatalf("the pod that came has changed the rules of %s", ip)
		}
	}
}

func endpointRows(t *testing.T, d *Datapath) map[netip.Addr]Endpoint {
	t.Helper()
	all, err := d.Endpoints().List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rows := map[netip.Addr]Endpoint{}
	for _, e := range all {
		rows[e.IP] = e
	}
	return rows
}
