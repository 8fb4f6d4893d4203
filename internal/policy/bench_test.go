// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

// large returns 1,000 pods of 100 applications in 10 namespaces, and 1,000 policies. Each allows one application
// traffic with another on a range of ports and on port 443, and with a range of addresses, except a part, on any port.
func large() Snapshot {
	var s Snapshot
	for n := range 10 {
		s.Namespaces = append(s.Namespaces, Namespace{fmt.Sprintf("n%d", n), map[string]string{"team": fmt.Sprint(n % 3)}})
	}
	for n := range 1000 {
		s.Pods = append(s.Pods, Pod{
			Namespace: fmt.Sprintf("n%d", n%10), Name: fmt.Sprint(n),
			Labels:    map[string]string{"app": fmt.Sprint(n % 100), "pod": fmt.Sprint(n)}, // as in a StatefulSet
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})},
		})
		team := Selector{Labels: map[string]string{"team": fmt.Sprint(n % 3)}}
		app := func(n int) Selector { return Selector{Labels: map[string]string{"app": fmt.Sprint(n % 100)}} }
		s.Policies = append(s.Policies, Policy{
			Tier: Namespaced, Namespace: fmt.Sprintf("n%d", n%10), Name: fmt.Sprint(n), IsolatesIngress: true,
			IsolatesEgress: true,
			Subject:        PodSelector{Selector{Labels: map[string]string{NamespaceLabel: fmt.Sprintf("n%d", n%10)}}, app(n)},
			Ingress: []Rule{{
				Peers: []Peer{{Pods: &PodSelector{team, app(n / 10)}}, {Pods: &PodSelector{team, app(n/10 + 1)}}},
				Ports: []Port{{Protocol: service.TCP, First: uint16(1000 + n), Last: uint16(1100 + n)},
					{Protocol: service.TCP, First: 443, Last: 443}},
			}},
			Egress: []Rule{{Peers: []Peer{{Block: &Block{
				netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(n % 50), 0}), 24),
				[]netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(n % 50), 128}), 25)},
			}}}}},
		})
	}
	return s
}

func cluster(policies, pods, here int) Snapshot {
	base, s, namespaces := large(), Snapshot{Node: "here"}, max(10, pods/400)
	for n := range namespaces {
		s.Namespaces = append(s.Namespaces, Namespace{fmt.Sprintf("n%d", n), map[string]string{"team": fmt.Sprint(n % 3)}})
	}
	apps := 10 * namespaces
	for n := range pods {
		p := base.Pods[n%1000]
		p.Namespace, p.Name, p.Node = fmt.Sprintf("n%d", n%namespaces), fmt.Sprint(n), "there"
		if n%(pods/here) == 0 {
			p.Node = "here"
		}
		p.Labels = map[string]string{"app": fmt.Sprint(n % apps), "pod": p.Name}
		p.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, byte(1 + n>>16), byte(n >> 8), byte(n)})}
		s.Pods = append(s.Pods, p)
	}
	for n := range policies {
		p := base.Policies[n%1000]
		p.Namespace, p.Name = fmt.Sprintf("n%d", n%namespaces), fmt.Sprint(n)
		p.Subject = PodSelector{
			Selector{Labels: map[string]string{NamespaceLabel: p.Namespace}},
			Selector{Labels: map[string]string{"app": fmt.Sprint(n % apps)}},
		}
		s.Policies = append(s.Policies, p)
	}
	return s
}

// BenchmarkCompile compiles all after one policy has changed, and compares the rows with the rows before. It reports
// CPU time, including garbage collection: run it with GOMAXPROCS=1.
func BenchmarkCompile(b *testing.B) {
	used := func() float64 {
		var r syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
		return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e6
	}
	for _, size := range [][3]int{{1000, 1000, 1000}, {1000, 1000, 100}, {5000, 20_000, 250}} {
		b.Run(fmt.Sprintf("policies=%d/pods=%d/here=%d", size[0], size[1], size[2]), func(b *testing.B) {
			s := cluster(size[0], size[1], size[2])
			have := testkit.Must(Compile(s, Rows{}))(b)
			s.Policies[0].Ingress = nil
			b.ReportAllocs()
			before := used()
			for b.Loop() {
				rows := testkit.Must(Compile(s, have))(b)
				c := Diff(have, rows)
				b.ReportMetric(float64(c.Len()), "changed")
				b.ReportMetric(float64(len(rows.Verdicts)), "verdicts")
				b.ReportMetric(float64(len(rows.Ports)), "ports")
				b.ReportMetric(float64(len(rows.Addresses)), "addresses")
			}
			b.ReportMetric((used()-before)/float64(b.N), "cpu-ms/op")
		})
	}
}

// BenchmarkChange is one policy that changes among 1,000, and one pod that comes to 1,000.
func BenchmarkChange(b *testing.B) {
	s := large()
	have := testkit.Must(Compile(s, Rows{}))(b)
	changes := map[string]func(*Snapshot){
		"policy": func(s *Snapshot) { s.Policies[5].Ingress = nil },
		"pod": func(s *Snapshot) {
			pod := s.Pods[0]
			pod.Name, pod.Addresses = "more", []netip.Addr{netip.MustParseAddr("10.2.0.1")}
			pod.Labels = map[string]string{"app": "0", "pod": "more"}
			s.Pods = append(s.Pods, pod)
		},
	}
	for name, edit := range changes {
		b.Run(name, func(b *testing.B) {
			s := large()
			edit(&s)
			for b.Loop() {
				want := testkit.Must(Compile(s, have))(b)
				c := Diff(have, want)
				b.ReportMetric(float64(c.Len()), "rows")
			}
		})
	}
}
