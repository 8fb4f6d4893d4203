// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestPolicyRows has nine pods in three namespaces send each to each under random policies. The programs of the sender
// and of the receiver drop the packets that policy.Explain denies, and no others.
func TestPolicyRows(t *testing.T) {
	w := newWorld(newBench(t), false, protoTCP)
	var s policy.Snapshot
	w.clear(t)
	for i := range 9 {
		p := policy.Pod{
			Namespace: fmt.Sprintf("n%d", i/3), Name: fmt.Sprintf("p%d", i),
			Labels: map[string]string{"app": string(rune('a' + i%3))},
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
	for seed := range uint64(testkit.Repeats(20, 1000)) {
		s.Policies = randomPolicies(rand.New(rand.NewPCG(seed, 15)))
		must(w.Policies().Apply(t.Context(), service.CLI, policies.Set{Snapshot: s}))(t)
		w.forget(t)
		compiled := must(policy.Steps(s, policy.Rows{}, policy.Limits{}))(t)[0]
		j := judge{s, compiled, s.Rules(compiled.Numbers), decisions}
		for from := range s.Pods {
			for to := range s.Pods {
				if from != to {
					w.compare(t, j, [2]int{from, to})
				}
			}
		}
		testkit.Require(t, !t.Failed(), "seed %d: %+v", seed, s.Policies)
	}
	for _, egress := range []bool{true, false} {
		for _, ingress := range []bool{true, false} {
			n := decisions[[2]bool{egress, ingress}]
			testkit.Check(t, n >= 100, "egress allowed %t, ingress allowed %t: %d packets, want 100", egress, ingress, n)
		}
	}
}

// judge has policies with their rows, and counts what they decide. Explain compiles the rows for each flow anew.
type judge struct {
	policy.Snapshot
	rows      policy.Rows
	rules     map[uint32]policy.Origin
	decisions map[[2]bool]int
}

func (j judge) of(t *testing.T, f policy.Flow) (egress, ingress policy.Decision) {
	t.Helper()
	egress, ingress = j.rows.Lookup(f, policy.Egress, j.rules), j.rows.Lookup(f, policy.Ingress, j.rules)
	if f.Protocol == service.TCP && f.Port == 80 {
		explained, entering := must2(policy.Explain(j.Snapshot, f))(t)
		failIf(t, !reflect.DeepEqual([2]policy.Decision{explained, entering}, [2]policy.Decision{egress, ingress}),
			"%+v: Explain says %+v and %+v, the rows %+v and %+v", f, explained, entering, egress, ingress)
	}
	j.decisions[[2]bool{egress.Allow, ingress.Allow}]++
	return egress, ingress
}

// compare sends the first packets of connections from one pod to another, past the programs of both, and compares with
// the verdicts of the policies.
func (w *world) compare(t *testing.T, j judge, ends [2]int) {
	t.Helper()
	for family, src := range j.Pods[ends[0]].Addresses {
		dst := j.Pods[ends[1]].Addresses[family]
		for _, protocol := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
			for _, port := range []uint16{80, 8080, 443} {
				f := policy.Flow{Source: src, Destination: dst, Protocol: protocol, Port: port}
				egress, ingress := j.of(t, f)
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
					want := egress.Allow && ingress.Allow
					failIf(t, (action != actionDrop) != want, "%s, %s %s to %s: action %d; egress %v by %s, ingress %v by %s",
						h.Program, protocol, p.src, p.dst, int32(action), egress.Allow, egress.Origin, ingress.Allow, ingress.Origin)
				}
			}
		}
	}
}

func choose[T any](g *rand.Rand, of ...T) T { return of[g.IntN(len(of))] }

// randomPolicies isolate pods, and let pods and addresses reach them at some ports, or keep them away. What selectors,
// tiers and priorities mean is in the rows already: internal/policy tests it.
func randomPolicies(g *rand.Rand) (all []policy.Policy) {
	rule := func(tier policy.Tier) (r policy.Rule) {
		if tier == policy.Admin {
			r.Action = choose(g, policy.Accept, policy.Deny)
		}
		for range g.IntN(3) {
			peer := policy.Peer{Pods: &policy.PodSelector{Pods: policy.Selector{Labels: map[string]string{"app": choose(g, "a",
				"b", "c")}}}}
			if g.IntN(4) == 0 {
				block := policy.Block{CIDR: netip.MustParsePrefix(choose(g, "0.0.0.0/0", "192.168.10.16/28", "192.168.10.22/32",
					"fd00:10::/64", "::/0"))}
				if block.CIDR.Contains(netip.MustParseAddr("192.168.10.24")) && g.IntN(2) == 0 {
					block.Except = []netip.Prefix{netip.MustParsePrefix("192.168.10.24/31")}
				}
				peer = policy.Peer{Block: &block}
			}
			r.Peers = append(r.Peers, peer)
		}
		for range g.IntN(3) {
			p := policy.Port{Protocol: choose(g, service.TCP, service.UDP, service.SCTP), First: choose(g, uint16(1), 80,
				443, 8080)}
			p.Last = choose(g, p.First, max(p.First, 1000), 65535)
			r.Ports = append(r.Ports, p)
		}
		return r
	}
	for i := range 1 + g.IntN(6) {
		p := policy.Policy{Name: fmt.Sprintf("p%d", i), Tier: choose(g, policy.Namespaced, policy.Namespaced, policy.Admin),
			Priority: uint16(i)}
		p.Subject.Pods.Labels = map[string]string{"app": choose(g, "a", "b", "c")}
		if p.Tier == policy.Namespaced {
			p.Namespace, p.Priority = choose(g, "n0", "n1", "n2"), 0
			p.Subject.Namespaces.Labels = map[string]string{policy.NamespaceLabel: p.Namespace}
			p.IsolatesEgress, p.IsolatesIngress = g.IntN(2) == 0, g.IntN(2) == 0
		}
		for _, rules := range []*[]policy.Rule{&p.Ingress, &p.Egress} {
			for range g.IntN(3) {
				*rules = append(*rules, rule(p.Tier))
			}
		}
		all = append(all, p)
	}
	return all
}

// manyPolicies are 1,000 pods of 100 applications in 10 namespaces, and 1,000 policies: each lets one application call
// another on a range of ports, and isolates it.
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
			Subject: policy.PodSelector{Namespaces: policy.Selector{Labels: map[string]string{policy.NamespaceLabel: namespace}},
				Pods: app(n)},
			Ingress: []policy.Rule{{
				Peers: []policy.Peer{{Pods: &policy.PodSelector{Pods: app(n / 10)}}},
				Ports: []policy.Port{{Protocol: service.TCP, First: uint16(1000 + n), Last: uint16(1100 + n)}},
			}},
		})
	}
	return s
}

// TestManyPolicies applies 1,000 policies to 1,000 pods of one node, and then changes one policy, and adds one pod:
// these write what differs, and no more.
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
	failIf(t, all < 5000, "%d rows: too few for 1,000 policies", all)
	changed := s
	changed.Policies = append([]policy.Policy{}, s.Policies...)
	changed.Policies[500].Ingress = nil
	n := apply("one policy changes", changed)
	testkit.Check(t, n != 0 && n <= all/10, "a policy that changes writes %d of %d rows", n, all)
	before := endpointRows(t, d)
	start := time.Now()
	more := admitAnother(t, d, "13")
	t.Logf("a pod comes: %v", time.Since(start))
	after := endpointRows(t, d)
	row := after[more]
	testkit.Check(t, row.sets.Ingress != 0, "the pod that came has no rules")
	for ip, row := range before {
		testkit.Require(t, after[ip].sets == row.sets, "the pod that came has changed the rules of %s", ip)
	}
}

func openMany(t testing.TB, s policy.Snapshot) *Datapath {
	t.Helper()
	d := openFresh(t, objects.Sizes{Services: 128, Backends: 256, Connections: 1 << 12, Endpoints: 2048})
	var pods []Endpoint
	for i, pod := range s.Pods {
		pods = append(pods, Endpoint{ID: uint32(i + 1), IP: pod.Addresses[0], Host: true, IfIndex: 1000 + i})
	}
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
	succeed(t, d.objects.WithLock(t.Context(), func() error {
		return errOf(d.Endpoints().writeAdmitted(more, &known, d.Endpoints().write))
	}))
	return more[0].IP
}

func endpointRows(t *testing.T, d *Datapath) map[netip.Addr]Endpoint {
	t.Helper()
	rows := map[netip.Addr]Endpoint{}
	for _, e := range must(d.Endpoints().List(t.Context()))(t) {
		rows[e.IP] = e
	}
	return rows
}
