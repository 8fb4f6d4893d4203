// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// BenchmarkPoliced measures the time of one packet of an open connection that a policy has allowed, by the number of the policy's
// rules, less that of an empty program.
func BenchmarkPoliced(b *testing.B) {
	empty := emptyProgram(b)
	with := newBench(b)
	for _, rules := range []int{0, 1, 10_000} {
		b.Run(fmt.Sprint(rules), func(b *testing.B) {
			w := newWorld(with, false, protoTCP)
			w.reset(b, objects.AttachHost)
			frame := toPod(w).frame()
			w.guard(b, frame)
			handle := policiesOf(w.objects)
			must(handle.Apply(b.Context(), service.CLI, policies.Set{Snapshot: allowing(w, rules)}))(b)
			before := counts(b, w.Datapath)
			program := with.loaded(b, fromHost)
			nothing, ours := perRun(b, empty, frame), perRun(b, program, frame)
			if tracked := delta(b, w.Datapath, before)["tracked"]; tracked > 0 != (rules > 0) {
				b.Errorf("%d connections were judged", tracked)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ours-nothing, "ns/packet")
			must(handle.Apply(b.Context(), service.CLI, policies.Set{}))(b)
		})
	}
}

// allowing returns a policy whose last rule allows what the client sends to the backend.
func allowing(w *world, rules int) policy.Snapshot {
	if rules == 0 {
		return policy.Snapshot{}
	}
	p := policy.Policy{Tier: policy.Namespaced, Namespace: "default", Name: "allowing", IsolatesIngress: true}
	p.Subject.Pods.Labels = map[string]string{"app": "backend"}
	for i := range rules {
		from := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16 + byte(i>>8), byte(i), 0}), 24)
		if i == rules-1 {
			from = netip.PrefixFrom(w.client.Addr(), 32)
		}
		p.Ingress = append(p.Ingress, policy.Rule{
			Peers: []policy.Peer{{Block: &policy.Block{CIDR: from}}},
			Ports: []policy.Port{{Protocol: service.TCP, First: w.backend.Port(), Last: w.backend.Port()}},
		})
	}
	return policy.Snapshot{Policies: []policy.Policy{p}, Pods: []policy.Pod{
		{Namespace: "default", Name: "backend", Labels: p.Subject.Pods.Labels, Addresses: []netip.Addr{w.backend.Addr()}},
	}}
}
