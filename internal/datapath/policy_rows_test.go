// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"math/rand/v2"
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

// TestPolicyRows has nine pods in three namespaces send each to each under random policies. The programs of the sender and of
// the receiver drop the packets that policy.Explain denies, and no others.
func TestPolicyRows(t *testing.T) {
	w := newWorld(newBench(t), false, protoTCP)
	s := policy.Snapshot{Namespaces: []policy.Namespace{{Name: "n1", Labels: map[string]string{"team": "one"}}}}
	w.clear(t)
	for i := range 9 {
		p := policy.Pod{
			Namespace: fmt.Sprintf("n%d", i/3), Name: fmt.Sprintf("p%d", i),
			Labels: map[string]string{"app": string(rune('a' + i%3)), "tier": string(rune('x' + i%2))},
			Ports:  []policy.NamedPort{{Name: "web", Protocol: service.TCP, Port: []uint16{80, 8080}[i%2]}},
			Addresses: []netip.Addr{
				netip.AddrFrom4([4]byte{192, 168, 10, byte(20 + i)}), netip.MustParseAddr(fmt.Sprintf("fd00:10::%d", 20+i)),
			},
		}
		for _, ip := range p.Addresses {
			w.endpoint(t, pod{uint32(i + 1), objects.AttachHost, "0a", "s"}, ip)
		}
		s.Pods = append(s.Pods, p)
	}
	t.Cleanup(func() {
		must(w.Policies().Apply(t.Context(), service.CLI, policies.Set{}))(t)
		w.sendAnything(t)
	})
	decisions := map[[2]bool]int{}
	for seed := range uint64(testkit.Repeats(30, 1000)) {
		s.Policies = policyGenerator{rand.New(rand.NewPCG(seed, 15))}.policies()
		must(w.Policies().Apply(t.Context(), service.CLI, policies.Set{Snapshot: s}))(t)
		w.forget(t)
		for from := range s.Pods {
			for to := range s.Pods {
				if from != to {
					w.compare(t, &s, [2]int{from, to}, decisions)
				}
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d: %+v", seed, s.Policies)
		}
	}
	for _, egress := range []bool{true, false} {
		for _, ingress := range []bool{true, false} {
			if n := decisions[[2]bool{egress, ingress}]; n < 100 {
				t.Errorf("egress allowed %t, ingress allowed %t: %d packets, want 100", egress, ingress, n)
			}
		}
	}
}

// compare sends the first packets of connections from one pod to another, past the programs of both, and compares with Explain.
func (w *world) compare(t *testing.T, s *policy.Snapshot, ends [2]int, decisions map[[2]bool]int) {
	t.Helper()
	for family, src := range s.Pods[ends[0]].Addresses {
		dst := s.Pods[ends[1]].Addresses[family]
		for _, protocol := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
			for _, port := range []uint16{80, 8080, 443} {
				f := policy.Flow{Source: src, Destination: dst, Protocol: protocol, Port: port}
				egress, ingress := must2(policy.Explain(*s, f))(t)
				decisions[[2]bool{egress.Allow, ingress.Allow}]++
				p := packet{src: netip.AddrPortFrom(src, 40000), dst: netip.AddrPortFrom(dst, port), proto: uint8(protocol)}
				p.flags, p.ack = flagSYN, 77
				if protocol == service.SCTP {
					p.flags = chunkInit
				}
				for i, h := range []objects.Hook{fromHost, toHost} {
					own := rows.EncodeAddr([]netip.Addr{src, dst}[i])
					row := objects.Sender{Endpoint: uint32(ends[i] + 1), Flags: objects.SenderUnguarded, Pod: own}
					succeed(t, w.objects.Senders.Put(objects.SenderKey{Ifindex: 1}, row))
					action, _ := w.run(t, h, p.frame())
					if want := egress.Allow && ingress.Allow; (action != actionDrop) != want {
						t.Errorf("%s, %s %s to %s: action %d; egress %v by %s, ingress %v by %s", h.Program, protocol,
							p.src, p.dst, int32(action), egress.Allow, egress.Origin, ingress.Allow, ingress.Origin)
					}
				}
			}
		}
	}
}

// policyGenerator makes random policies for the nine pods.
type policyGenerator struct{ *rand.Rand }

func choose[T any](g policyGenerator, of ...T) T { return of[g.IntN(len(of))] }

func (g policyGenerator) policies() []policy.Policy {
	var all []policy.Policy
	for i := range 1 + g.IntN(6) {
		p := policy.Policy{Name: fmt.Sprintf("p%d", i), Tier: choose(g, policy.Namespaced, policy.Namespaced, policy.Admin, policy.Baseline)}
		p.Subject = policy.PodSelector{Namespaces: g.selector("team", "one"), Pods: g.selector("app", "a", "b", "c")}
		if p.Tier == policy.Namespaced {
			p.Namespace = choose(g, "n0", "n1", "n2")
			p.Subject.Namespaces = policy.Selector{Labels: map[string]string{policy.NamespaceLabel: p.Namespace}}
			p.IsolatesEgress, p.IsolatesIngress = g.IntN(2) == 0, g.IntN(2) == 0
		} else {
			p.Priority = uint16(g.IntN(3))
		}
		for range g.IntN(3) {
			p.Ingress = append(p.Ingress, g.rule(p.Tier))
		}
		for range g.IntN(3) {
			p.Egress = append(p.Egress, g.rule(p.Tier))
		}
		all = append(all, p)
	}
	return all
}

func (g policyGenerator) selector(key string, values ...string) policy.Selector {
	switch g.IntN(4) {
	case 0:
		return policy.Selector{}
	case 1:
		return policy.Selector{Requirements: []policy.Requirement{{Key: key, Operator: choose(g, "NotIn", "In"), Values: []string{choose(g, values...)}}}}
	case 2:
		return policy.Selector{Requirements: []policy.Requirement{{Key: choose(g, key, "tier"), Operator: choose(g, "Exists", "DoesNotExist")}}}
	}
	return policy.Selector{Labels: map[string]string{key: choose(g, values...)}}
}

func (g policyGenerator) rule(tier policy.Tier) policy.Rule {
	r := policy.Rule{}
	if tier != policy.Namespaced {
		r.Action = choose(g, policy.Accept, policy.Deny, policy.Pass)
	}
	for range g.IntN(3) {
		switch g.IntN(4) {
		case 0:
			b := &policy.Block{CIDR: netip.MustParsePrefix(choose(g, "0.0.0.0/0", "192.168.10.0/24", "192.168.10.16/28", "fd00:10::/64", "::/0", "192.168.10.22/32"))}
			if e := netip.MustParsePrefix("192.168.10.24/31"); g.IntN(2) == 0 && b.CIDR.Contains(e.Addr()) && b.CIDR.Bits() < 31 {
				b.Except = []netip.Prefix{e}
			}
			r.Peers = append(r.Peers, policy.Peer{Block: b})
		default:
			r.Peers = append(r.Peers, policy.Peer{Pods: &policy.PodSelector{Namespaces: g.selector("team", "one"), Pods: g.selector("app", "a", "b", "c")}})
		}
	}
	for range g.IntN(3) {
		p := policy.Port{Protocol: choose(g, service.TCP, service.UDP, service.SCTP)}
		switch g.IntN(3) {
		case 0:
			p.Name = "web"
		case 1:
			p.First, p.Last = 1, choose(g, uint16(80), 1000, 8080, 65535)
		default:
			p.First = choose(g, uint16(80), 8080, 443)
			p.Last = p.First
		}
		r.Ports = append(r.Ports, p)
	}
	return r
}

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
