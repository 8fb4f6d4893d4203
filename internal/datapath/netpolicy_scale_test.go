// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/datapath/rows"
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
	s := manyPolicies()
	d := openMany(t, s)
	apply := func(what string, s policy.Snapshot) int {
		t.Helper()
		start := time.Now()
		r := must(d.Policies().Apply(t.Context(), service.CLI, policies.Set{Snapshot: s}))(t)
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
	more := admitAnother(t, d, "13")
	t.Logf("a pod comes: %v", time.Since(start))
	after := endpointRows(t, d)
	if row := after[more]; row.sets.Ingress == 0 {
		t.Error("the pod that came has no rules")
	}
	for ip, row := range before {
		if after[ip].sets != row.sets {
			t.Fatalf("the pod that came has changed the rules of %s", ip)
		}
	}
}

// openMany opens a datapath whose endpoints are the pods of a snapshot.
func openMany(t testing.TB, s policy.Snapshot) *Datapath {
	t.Helper()
	d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root", Sizes: objects.Sizes{Services: 128, Backends: 256, Connections: 1 << 12, Endpoints: 2048}})
	var pods []Endpoint
	for i, pod := range s.Pods {
		pods = append(pods, Endpoint{ID: uint32(i + 1), IP: pod.Addresses[0], Host: true, IfIndex: 1000 + i})
	}
	succeed(t, d.objects.OpenTables())
	succeed(t, d.Endpoints().write(pods))
	for _, e := range pods {
		row := objects.Sender{
			Endpoint: e.ID, Pod: rows.EncodeAddr(e.IP),
			LinkLocal: rows.EncodeAddr(netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 14: byte(e.ID >> 8), 15: byte(e.ID)})),
		}
		succeed(t, d.objects.Senders.Put(objects.SenderKey{Ifindex: uint32(e.IfIndex)}, row))
	}
	return d
}

// admitAnother writes the rows of one more pod, which is of an application, and returns its address.
func admitAnother(t testing.TB, d *Datapath, app string) netip.Addr {
	t.Helper()
	more := []Endpoint{{ID: 2000, IP: netip.MustParseAddr("10.2.0.1"), Host: true, IfIndex: 5000}}
	known := policy.Pod{Namespace: "n3", Name: "more", Labels: map[string]string{"app": app}}
	succeed(t, d.objects.WithTables(t.Context(), func() error {
		_, err := d.Endpoints().writeAdmitted(more, &known, d.Endpoints().write)
		return err
	}))
	return more[0].IP
}

// BenchmarkManyPolicies changes one of 1,000 policies for 1,000 pods of one node, and the labels of one pod, without the start of a
// process.
func BenchmarkManyPolicies(b *testing.B) {
	s := manyPolicies()
	d := openMany(b, s)
	edit := func(n int) {
		s.Policies[500].Ingress[0].Ports[0].Last = 2000 + uint16(n%2)
		must(d.Policies().Apply(b.Context(), service.CLI, policies.Set{Snapshot: s}))(b)
	}
	edit(0)
	for name, change := range map[string]func(int){"policy": edit, "pod": func(n int) { admitAnother(b, d, []string{"13", "23"}[n%2]) }} {
		b.Run(name, func(b *testing.B) { perChange(b, change) })
	}
}

// BenchmarkManyRules changes one of a policy's 10,000 rules: its range of addresses, or its port.
func BenchmarkManyRules(b *testing.B) {
	s := manyPolicies()
	s.Policies, s.Pods = s.Policies[:1], s.Pods[:1]
	s.Policies[0].Ingress = nil
	for i := range 10_000 {
		s.Policies[0].Ingress = append(s.Policies[0].Ingress, policy.Rule{
			Peers: []policy.Peer{{Block: &policy.Block{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16 + byte(i>>8), byte(i), 0}), 24)}}},
			Ports: []policy.Port{{Protocol: service.TCP, First: 80, Last: 80}},
		})
	}
	d := openMany(b, s)
	apply := func(edit func(*policy.Rule)) {
		s.Policies = slices.Clone(s.Policies)
		s.Policies[0].Ingress = slices.Clone(s.Policies[0].Ingress)
		edit(&s.Policies[0].Ingress[5000])
		must(d.Policies().Apply(b.Context(), service.CLI, policies.Set{Snapshot: s}))(b)
	}
	apply(func(*policy.Rule) {})
	for name, edit := range map[string]func(r *policy.Rule, n int){
		"range": func(r *policy.Rule, n int) {
			r.Peers = []policy.Peer{{Block: &policy.Block{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(n), 0}), 24)}}}
		},
		"port": func(r *policy.Rule, n int) {
			r.Ports = []policy.Port{{Protocol: service.TCP, First: 81 + uint16(n), Last: 81 + uint16(n)}}
		},
	} {
		b.Run(name, func(b *testing.B) {
			perChange(b, func(n int) { apply(func(r *policy.Rule) { edit(r, n) }) })
		})
	}
}

// perChange measures the time of changes, of which the first has none to build on, and the CPU time that one takes.
func perChange(b *testing.B, change func(n int)) {
	change(0)
	var before, after unix.Rusage
	succeed(b, unix.Getrusage(unix.RUSAGE_SELF, &before))
	for n := 1; b.Loop(); n++ {
		change(n)
	}
	_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
	used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(used)/float64(b.N)/1e6, "cpu-ms/op")
}

func endpointRows(t *testing.T, d *Datapath) map[netip.Addr]Endpoint {
	t.Helper()
	all := must(d.Endpoints().List(t.Context()))(t)
	rows := map[netip.Addr]Endpoint{}
	for _, e := range all {
		rows[e.IP] = e
	}
	return rows
}
