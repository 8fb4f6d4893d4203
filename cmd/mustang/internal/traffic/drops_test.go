// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/kept"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// The services of the lab, and addresses of pods and of the client outside with ports.
const (
	served, empty, localOnly = "10.96.0.1:53", "10.96.0.2:53", "203.0.113.3:53"
	portA, portOuter, portB  = podA + ":4000", client + ":4000", podB + ":53"
)

// fromA sends a datagram of pod shop/a.
func fromA(from, to string) func(*lab) {
	return func(l *lab) { l.frame(l.a, "eth0", nil, udp(from, to)) }
}

// ofA is the line of a packet of pod shop/a to a service.
func ofA(to, protocol string) line {
	return line{Pod: "shop/a", Source: portA, SourcePod: "shop/a", Destination: to, Service: to + "/" +
		protocol, Protocol: protocol, Place: "host"}
}

func policyOf(app, direction string) func(*lab) {
	return func(l *lab) {
		l.policies(fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: none, namespace: `+
			`shop},
  spec: {podSelector: {matchLabels: {app: %s}}, policyTypes: [%s]}}`, app, direction))
	}
}

// provocation makes a program drop a packet: begin runs once before, again repeatedly.
type provocation struct {
	reason       string
	begin, again func(l *lab)
	want         line // of the drop, as far as given here
}

// provocations cause a line with each field about a dropped packet. Package datapath tests a drop of each reason.
func provocations() []provocation {
	other := net.HardwareAddr{2, 0, 0, 0, 0, 0x77}
	toB := line{
		Pod: "shop/a", Source: portA, SourcePod: "shop/a", Destination: portB, DestinationPod: "shop/b", Protocol: "udp",
		Length: 42, Place: "host",
	}
	nothing := func(*lab) {}
	return []provocation{
		{"source", nothing, fromA("192.168.10.99:4000", served), line{
			Pod: "shop/a", Source: "192.168.10.99:4000", Destination: served, Service: served + "/udp", Length: 42,
		}},
		{
			"source_mac", nothing, func(l *lab) { l.frame(l.a, "eth0", other, udp(portA, served)) },
			line{Pod: "shop/a", Source: portA, Destination: served, MAC: other.String()},
		},
		{"neighbour", nothing, func(l *lab) {
			arp := append([]byte{0, 1, 8, 0, 6, 4, 0, 2}, other...)
			arp = append(append(arp, netip.MustParseAddr(podB).AsSlice()...), other...)
			l.frame(l.a, "eth0", nil, typed(unix.ETH_P_ARP, append(arp, netip.MustParseAddr(podA).AsSlice()...)))
		}, line{Pod: "shop/a", Source: podB, SourcePod: "shop/b", Destination: podA, DestinationPod: "shop/a",
			Protocol: "arp"}},
		{
			"ethertype", nothing, func(l *lab) { l.frame(l.a, "eth0", nil, typed(0x88cc, make([]byte, 46))) },
			line{Pod: "shop/a", EtherType: "0x88cc", Length: 60},
		},
		{"no_backend", func(l *lab) { l.serve(service.Service{Protocol: service.UDP}, empty) }, fromA(portA, empty),
			ofA(empty, "udp")},
		{
			"no_local_backend", func(l *lab) {
				l.serve(service.Service{Protocol: service.UDP, External: true, ExternalPolicy: service.Local}, localOnly,
					"172.16.1.2:53")
			},
			func(l *lab) { l.frame(l.outer, "outer", nil, udp(portOuter, localOnly)) },
			line{Source: portOuter, Destination: localOnly, Service: localOnly + "/udp", Protocol: "udp", Place: "uplink"},
		},
		{"policy_egress", policyOf("a", "Egress"), fromA(portA, portB), toB},
		{"policy_ingress", policyOf("b", "Ingress"), fromA(portA, portB), toB},
	}
}

// TestReasons provokes drops. The monitor has to name the reason, the pod and the addresses, and the rule of a policy
// in a line of its own.
func TestReasons(t *testing.T) {
	l := newLab(t, kept.Root)
	l.monitor()
	l.serve(service.Service{Protocol: service.UDP}, served, portB)
	for _, p := range provocations() {
		t.Run(p.reason, func(t *testing.T) {
			l.t = t
			l.flush()
			p.begin(l)
			p.want.Verdict, p.want.Reason = flows.Dropped, p.reason
			seen := l.awaits(p.want, func() { p.again(l) })
			denied := slices.ContainsFunc(seen, func(s line) bool {
				return s.Verdict == flows.Denied && s.Reason == p.reason && s.Rule != ""
			})
			isPolicy := p.reason == "policy_egress" || p.reason == "policy_ingress"
			testkit.Check(t, denied == isPolicy, "a line with a rule: %v, in %+v", denied, seen)
		})
	}
	l.t = t
}

// awaits repeats a provocation until the monitor prints a line, and returns all lines until then.
func (l *lab) awaits(want line, provoke func()) (seen []line) {
	l.t.Helper()
	testkit.Eventually(l.t, 10*time.Second, func() error {
		provoke()
		time.Sleep(50 * time.Millisecond)
		lines := l.out.lines(l.t)
		seen = append(seen, lines...)
		if !slices.ContainsFunc(lines, want.in) {
			return fmt.Errorf("no line %+v in %+v", want, seen)
		}
		return nil
	})
	return seen
}

func (l line) in(of line) bool {
	if l.Length == 0 {
		l.Length = of.Length
	}
	for _, part := range [][2]*string{
		{&l.Pod, &of.Pod}, {&l.Source, &of.Source}, {&l.SourcePod, &of.SourcePod}, {&l.Destination, &of.Destination},
		{&l.Service, &of.Service},
		{&l.DestinationPod, &of.DestinationPod}, {&l.Protocol, &of.Protocol}, {&l.EtherType, &of.EtherType},
		{&l.MAC, &of.MAC}, {&l.Flags, &of.Flags},
		{&l.Place, &of.Place}, {&l.Backend, &of.Backend}, {&l.BackendPod, &of.BackendPod},
	} {
		if *part[0] != "" && *part[0] != *part[1] {
			return false
		}
	}
	return l.Verdict == of.Verdict && l.Reason == of.Reason && l.Length == of.Length
}
