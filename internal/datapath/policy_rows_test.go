// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestPolicyRows has nine pods in three namespaces send each to each under random policies. The programs drop the packets that
// policy.Explain denies, on the side of the sender and on the side of the receiver, and no others.
func TestPolicyRows(t *testing.T) {
	w := newWorld(newBench(t), false, protoTCP)
	s := policy.Snapshot{Namespaces: []policy.Namespace{{Name: "n1", Labels: map[string]string{"team": "one"}}}}
	w.clear(t)
	for i := range 9 {
		p := policy.Pod{
			Namespace: fmt.Sprintf("n%d", i/3), Name: fmt.Sprintf("p%d", i),
			Labels:    map[string]string{"app": string(rune('a' + i%3)), "tier": string(rune('x' + i%2))},
			Ports:     []policy.NamedPort{{Name: "web", Protocol: service.TCP, Port: []uint16{80, 8080}[i%2]}},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 10, byte(20 + i)}), netip.MustParseAddr(fmt.Sprintf("fd00:10::%d", 20+i))},
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
			if decisions[[2]bool{egress, ingress}] < 100 {
				t.Errorf("egress allowed %t, ingress allowed %t: %d packets only", egress, ingress, decisions[[2]bool{egress, ingress}])
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
				p := packet{src: netip.AddrPortFrom(src, 40000), dst: netip.AddrPortFrom(dst, port), proto: uint8(protocol), flags: flagSYN, ack: 77}
				if protocol == service.SCTP {
					p.flags = chunkInit
				}
				for i, h := range []objects.Hook{fromHost, toHost} {
					owner := netip.Addr([]netip.Addr{src, dst}[i])
					row := objects.Sender{Endpoint: uint32(ends[i] + 1), Flags: objects.SenderUnguarded, Pod: rows.EncodeAddr(owner)}
					succeed(t, w.objects.Senders.Put(objects.SenderKey{Ifindex: 1}, row))
					action, _ := w.run(t, h, p.frame())
					if want := egress.Allow && ingress.Allow; (action != actionDrop) != want {
						t.Errorf("%s, %s %s to %s: action %d; egress %v by %s, ingress %v by %s", h.Program, protocol, p.src, p.dst, int32(action),
							egress.Allow, egress.Origin, ingress.Allow, ingress.Origin)
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
