// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// The services of the lab, and a backend that is no pod.
const (
	served, empty, missing     = "10.96.0.1:53", "10.96.0.2:53", "[fd00:96::3]:53"
	sctp1, sctp2, ranged       = "10.96.0.4:99", "10.96.0.5:99", "10.96.0.6:53"
	gone                       = "fd00:10::c"
	resets, remote, unrouted   = "10.96.0.7:80", "203.0.113.1:53", "203.0.113.2:53"
	localOnly, direct, served6 = "203.0.113.3:53", "203.0.113.4:53", "[fd00:96::1]:53"
	inTunnel                   = "203.0.113.5:53"
)

// provocation makes a program drop a packet.
type provocation struct {
	begin, again, end func(l *lab) // once before, repeatedly, once after; nil: nothing
	want              line         // of the drop, as far as given here; its reason is the case's
}

func udp(from, to string) packet { return packet{from: from, to: to, proto: unix.IPPROTO_UDP} }

// fromA and fromOuter send packets of pod shop/a and of the client outside.
func fromA(packets ...packet) func(*lab) {
	return func(l *lab) { l.send(l.a, "eth0", packets...) }
}

func fromOuter(packets ...packet) func(*lab) {
	return func(l *lab) { l.send(l.outer, "outer", packets...) }
}

const portA, portA6, portOuter, portB = podA + ":4000", "[" + podA6 + "]:4000", client + ":4000", podB + ":53"

// ofA is the line of a packet of pod shop/a to a service.
func ofA(to, protocol string) line {
	return line{Pod: "shop/a", Source: portA, SourcePod: "shop/a", Destination: to, Service: to + "/" + protocol, Protocol: protocol, Place: "host"}
}

// ofOuter is that of a datagram of the client outside.
func ofOuter(to string) line {
	return line{Source: portOuter, Destination: to, Service: to + "/udp", Protocol: "udp", Place: "uplink"}
}

// noPolicies ends what policies do.
func noPolicies(l *lab) { l.policies("") }

// policyOf denies all of pods with a label in a direction.
func policyOf(app, direction string) func(*lab) {
	return func(l *lab) {
		l.policies(fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: none, namespace: shop},
  spec: {podSelector: {matchLabels: {app: %s}}, policyTypes: [%s]}}`, app, direction))
	}
}

// provocations returns a provocation of each reason.
func provocations() map[string]provocation {
	all := packetProvocations()
	for reason, p := range tableProvocations() {
		all[reason] = p
	}
	for reason, p := range outsideProvocations() {
		all[reason] = p
	}
	return all
}

// packetProvocations are packets that a pod may not send.
func packetProvocations() map[string]provocation {
	other := net.HardwareAddr{2, 0, 0, 0, 0, 0x77}
	cut := udp(portA, served)
	cut.mangle = func(ip []byte) { ip[0] = 0x55 }
	long := packet{from: portA6, to: served6, proto: unix.IPPROTO_DSTOPTS, size: 100, mangle: func(ip []byte) {
		clear(ip[40:])
		for i := range 9 {
			ip[40+8*i] = unix.IPPROTO_DSTOPTS
		}
	}}
	toB := line{
		Pod: "shop/a", Source: portA, SourcePod: "shop/a", Destination: portB, DestinationPod: "shop/b", Protocol: "udp", Length: 42, Place: "host",
	}
	return map[string]provocation{
		"malformed":  {again: fromA(cut), want: ofA(served, "udp")},
		"extensions": {again: fromA(long), want: line{Pod: "shop/a", Source: podA6, Destination: "fd00:96::1", Protocol: "protocol-60"}},
		"source": {again: fromA(udp("192.168.10.99:4000", served)), want: line{
			Pod: "shop/a", Source: "192.168.10.99:4000", Destination: served, Service: served + "/udp", Length: 42,
		}},
		"source_mac": {
			again: func(l *lab) { l.frame(l.a, "eth0", other, typed(unix.ETH_P_IP, udp(portA, served).ip())) },
			want:  line{Pod: "shop/a", Source: portA, Destination: served, MAC: other.String()},
		},
		"neighbour": {
			again: func(l *lab) {
				arp := append([]byte{0, 1, 8, 0, 6, 4, 0, 2}, other...)
				arp = append(append(arp, netip.MustParseAddr(podB).AsSlice()...), other...)
				l.frame(l.a, "eth0", nil, typed(unix.ETH_P_ARP, append(arp, netip.MustParseAddr(podA).AsSlice()...)))
			},
			want: line{Pod: "shop/a", Source: podB, SourcePod: "shop/b", Destination: podA, DestinationPod: "shop/a", Protocol: "arp"},
		},
		"ethertype": {
			again: func(l *lab) { l.frame(l.a, "eth0", nil, typed(0x88cc, make([]byte, 46))) },
			want:  line{Pod: "shop/a", EtherType: "0x88cc", Length: 60},
		},
		"policy_egress":  {begin: policyOf("a", "Egress"), again: fromA(udp(portA, portB)), want: toB, end: noPolicies},
		"policy_ingress": {begin: policyOf("b", "Ingress"), again: fromA(udp(portA, portB)), want: toB, end: noPolicies},
	}
}

// tableProvocations are those of a pod's calls to services.
func tableProvocations() map[string]provocation {
	tcp := packet{from: portA, to: resets, proto: unix.IPPROTO_TCP}
	syn, ack := tcp, tcp
	syn.flags, ack.flags = 2, 16
	var many []packet
	for port := range 40 {
		many = append(many, udp(fmt.Sprintf("%s:%d", podA, 2000+port), served))
	}
	last := ofA(served, "udp")
	last.Source = podA + ":2039"
	init := packet{from: portA, to: sctp1, proto: unix.IPPROTO_SCTP}
	second := init
	second.to = sctp2
	reset := ofA(resets, "tcp")
	reset.Flags = "ACK"
	return map[string]provocation{
		"no_backend": {
			begin: func(l *lab) { l.serve(service.Service{Protocol: service.UDP}, empty) },
			again: fromA(udp(portA, empty)), want: ofA(empty, "udp"),
		},
		"backend_missing": {
			begin: func(l *lab) {
				l.serve(service.Service{Protocol: service.UDP}, missing, "["+gone+"]:53")
				l.tables(func(o *objects.Objects) error {
					for row, err := range o.Backends.All() {
						if err != nil {
							return err
						}
						if netip.AddrFrom16(row.Value.Addr.Bytes) == netip.MustParseAddr(gone) {
							return o.Backends.Delete(row.Key)
						}
					}
					return fmt.Errorf("no backend %s", gone)
				})
			},
			again: fromA(udp(portA6, missing)), want: line{Pod: "shop/a", Source: portA6, SourcePod: "shop/a", Destination: missing},
		},
		"port_exhausted": {
			begin: func(l *lab) {
				for _, frontend := range []string{sctp1, sctp2} {
					l.serve(service.Service{Protocol: service.SCTP}, frontend, podB+":99")
				}
			},
			again: fromA(init, second), want: ofA(sctp2, "sctp"),
		},
		"table_full":   {begin: func(l *lab) { l.fill(true) }, again: fromA(udp(portA, served)), want: ofA(served, "udp"), end: func(l *lab) { l.fill(false) }},
		"client_share": {again: fromA(many...), want: last},
		"source_range": {
			begin: func(l *lab) {
				l.serve(service.Service{Protocol: service.UDP, SourceRanges: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}, ranged, portB)
			},
			again: fromA(udp(portA, ranged)), want: ofA(ranged, "udp"),
		},
		"backend_removed": {
			begin: func(l *lab) {
				s := service.Service{Protocol: service.TCP, OnRemove: service.Reset}
				l.serve(s, resets, podB+":80")
				fromA(syn, ack)(l)
				l.serve(s, resets, far+":80")
			},
			again: fromA(ack), want: reset,
		},
	}
}

// outsideProvocations are calls of a client outside.
func outsideProvocations() map[string]provocation {
	old := udp(portOuter, remote)
	old.ttl = 1
	large, huge := udp(portOuter, remote), udp(portOuter, direct)
	large.size, huge.size = 2000, 30000
	return map[string]provocation{
		"ttl": {again: fromOuter(old), want: ofOuter(remote)},
		"too_big": {
			begin: func(l *lab) { l.run("-n HOST link set wire mtu 1400") },
			again: fromOuter(large), want: ofOuter(remote),
			end: func(l *lab) { l.run("-n HOST link set wire mtu 65535") },
		},
		// The kernel makes no room in front of a packet of more than 16 KiB.
		"rewrite": {
			begin: func(l *lab) {
				l.serve(service.Service{Protocol: service.UDP, External: true, DSR: service.IPIP}, direct, far+":53")
			},
			again: fromOuter(huge), want: ofOuter(direct),
		},
		"no_route": {
			begin: func(l *lab) { l.serve(service.Service{Protocol: service.UDP, External: true}, unrouted, lost+":53") },
			again: fromOuter(udp(portOuter, unrouted)), want: ofOuter(unrouted),
		},
		"tunnel_route": {
			begin: func(l *lab) {
				l.run("-n HOST route add 198.51.100.8/32 encap ip id 7 dst " + far + " dev wire")
				l.serve(service.Service{Protocol: service.UDP, External: true}, inTunnel, "198.51.100.8:53")
			},
			again: fromOuter(udp(portOuter, inTunnel)), want: ofOuter(inTunnel),
			end: func(l *lab) { l.run("-n HOST route del 198.51.100.8/32") },
		},
		"no_source": {
			begin: func(l *lab) {
				l.run("-n HOST addr del " + near + "/24 dev wire\n-n HOST route add " + far + " dev wire")
				l.uplink("wire")
			},
			again: fromOuter(udp(portOuter, remote)), want: ofOuter(remote),
			end: func(l *lab) {
				l.run("-n HOST route del " + far + " dev wire\n-n HOST addr add " + near + "/24 dev wire")
				l.uplink("wire")
			},
		},
		"no_local_backend": {
			begin: func(l *lab) {
				l.serve(service.Service{Protocol: service.UDP, External: true, ExternalPolicy: service.Local}, localOnly, far+":53")
			},
			again: fromOuter(udp(portOuter, localOnly)), want: ofOuter(localOnly),
		},
	}
}

// tables calls a function with the maps of the datapath.
func (l *lab) tables(do func(*objects.Objects) error) {
	l.t.Helper()
	o, err := objects.Open(l.root)
	if err != nil {
		l.t.Fatal(err)
	}
	defer o.Close()
	if err = o.OpenTables(); err == nil {
		err = do(o)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// fill fills the table of connections, or takes what it has put there out again.
func (l *lab) fill(full bool) {
	l.tables(func(o *objects.Objects) error {
		for i := range o.Connections.Size() {
			key := objects.Tuple{Proto: 255, Sport: uint16(i), Dport: uint16(i >> 16)}
			if !full {
				_ = o.Connections.Delete(key)
			} else if o.Connections.Put(key, objects.ConnectionRow{}) != nil {
				return nil
			}
		}
		return nil
	})
}

// TestReasons provokes a drop for each reason that there is a counter of. The monitor has to name the reason, the pod and the addresses.
func TestReasons(t *testing.T) {
	l := newLab(t, 64)
	l.monitor()
	l.serve(service.Service{Protocol: service.UDP}, served, portB)
	l.serve(service.Service{Protocol: service.UDP}, served6, "["+podB6+"]:53")
	l.serve(service.Service{Protocol: service.UDP, External: true}, remote, far+":53")
	all := provocations()
	for _, drop := range flows.Drops()[1:] {
		reason := drop[0]
		t.Run(reason, func(t *testing.T) {
			p, ok := all[reason]
			if !ok {
				t.Fatal("nothing provokes it")
			}
			l.t = t
			l.flush()
			if p.begin != nil {
				p.begin(l)
			}
			p.want.Verdict, p.want.Reason = flows.Dropped, reason
			before := l.counted(reason)
			var seen []line
			testkit.Eventually(t, 10*time.Second, func() error {
				p.again(l)
				time.Sleep(50 * time.Millisecond)
				lines := l.out.lines(t)
				seen = append(seen, lines...)
				if !slices.ContainsFunc(lines, p.want.in) {
					return fmt.Errorf("no line %+v in %+v", p.want, seen)
				}
				return nil
			})
			if p.end != nil {
				p.end(l)
			}
			if l.counted(reason) == before {
				t.Error("the counter of the reason has not changed")
			}
			denied := slices.ContainsFunc(seen, func(s line) bool { return s.Verdict == flows.Denied && s.Reason == reason && s.Rule != "" })
			if isPolicy := p.end != nil && (reason == "policy_egress" || reason == "policy_ingress"); denied != isPolicy {
				t.Errorf("a line with a rule: %v, in %+v", denied, seen)
			}
		})
	}
	l.t = t
}

// counted returns the counter of a reason.
func (l *lab) counted(reason string) uint64 {
	l.t.Helper()
	counters, err := l.d.Flows().Counters()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, c := range counters {
		if c.Name == "drop_"+reason {
			return c.Packets
		}
	}
	l.t.Fatalf("no counter of %s", reason)
	return 0
}

// in reports whether a line has all that is given in l.
func (l line) in(of line) bool {
	if l.Length == 0 {
		l.Length = of.Length
	}
	for _, part := range [][2]*string{
		{&l.Pod, &of.Pod}, {&l.Source, &of.Source}, {&l.SourcePod, &of.SourcePod}, {&l.Destination, &of.Destination}, {&l.Service, &of.Service},
		{&l.DestinationPod, &of.DestinationPod}, {&l.Protocol, &of.Protocol}, {&l.EtherType, &of.EtherType}, {&l.MAC, &of.MAC}, {&l.Flags, &of.Flags},
		{&l.Place, &of.Place}, {&l.Backend, &of.Backend}, {&l.BackendPod, &of.BackendPod},
	} {
		if *part[0] != "" && *part[0] != *part[1] {
			return false
		}
	}
	return l.Verdict == of.Verdict && l.Reason == of.Reason && l.Length == of.Length
}
