// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy/manifest"
	"mustang/internal/service"
)

// policed is a world whose pods a (the backend) and b (the client) have labels.
type policed struct{ *world }

// TestPolicyPackets sends what a pod and its network may send, while policies select one of the pods.
func TestPolicyPackets(t *testing.T) {
	b := newBench(t)
	for _, h := range []objects.AttachPoint{objects.AttachHost, objects.AttachPod, objects.AttachNetkit} {
		for _, family := range []string{"ipv4", "ipv6"} {
			for _, c := range policyCases() {
				t.Run(fmt.Sprintf("%s/%s/%s", h, family, c.name), func(t *testing.T) {
					p := policed{newWorld(b, family == "ipv6", protoUDP)}
					p.reset(t, h)
					t.Cleanup(func() {
						p.apply(t, false)
						b.sendAnything(t)
					})
					from, to := objects.Hook{Point: h, Program: "from_pod"}, objects.Hook{Point: h, Program: "to_pod"}
					c.run(t, p, policedHooks{p, from, p.client.Addr()}, policedHooks{p, to, p.backend.Addr()})
				})
			}
		}
	}
}

// apply makes the policies those of the documents.
func (p policed) apply(t *testing.T, audit bool, documents ...string) {
	t.Helper()
	for name, addr := range map[string]netip.Addr{"a": p.backend.Addr(), "b": p.client.Addr()} {
		documents = append(documents,
			fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {app: %s}}, status: {podIP: %q}}", name,
				name, addr))
	}
	set := must(manifest.Read(strings.NewReader("---\n" + strings.Join(documents, "\n---\n"))))(t)
	must(p.Policies().Apply(t.Context(), service.CLI, policies.Set{Snapshot: set.Snapshot, Audit: audit}))(t)
}

// policedHooks is a program of a pod.
type policedHooks struct {
	policed
	hook objects.Hook
	pod  netip.Addr
}

// gets runs the program on a frame, and fails the test unless it is dropped for that reason, or not at all if there is
// none.
func (h policedHooks) gets(t *testing.T, want string, frame []byte) {
	t.Helper()
	sender := objects.Sender{Endpoint: 1, Flags: objects.SenderUnguarded, Pod: rows.EncodeAddr(h.pod)}
	h.as(t, sender, want, frame)
}

func (h policedHooks) as(t *testing.T, sender objects.Sender, want string, frame []byte) {
	t.Helper()
	key := objects.SenderKey{Ifindex: 1}
	if h.hook.Point == objects.AttachPod || h.hook.Point == objects.AttachNetkit && h.hook.Program == "to_pod" {
		key.Netns = ownCookie(t)
	}
	succeed(t, h.objects.Senders.Put(key, sender))
	before, got := counts(t, h.Datapath), ""
	action, _ := h.run(t, h.hook, frame)
	for name, n := range delta(t, h.Datapath, before) {
		if strings.HasPrefix(name, "drop_") && n > 0 {
			got = name
		}
	}
	failIf(t, got != want || (action == actionDrop) != (want != ""), "action %d, %q, want %q", int32(action), got, want)
}

const (
	ingressDrop, egressDrop = "drop_policy_ingress", "drop_policy_egress"

	egressFromB = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: b}, spec: {podSelector: ` +
		`{matchLabels: {app: b}}, policyTypes: [Ingress, Egress],
  egress: [{ports: [{protocol: UDP, port: 53}, {protocol: UDP, port: 8080}]}, {to: [{podSelector: {matchLabels: {app: a}}}]}]}}`
)

// link returns addresses of both pods on their link that are in no row: link-local ones.
func (p policed) link() (client, backend netip.AddrPort) {
	if p.v6 {
		return netip.AddrPortFrom(ownLocal, 4000), netip.AddrPortFrom(otherLocal, 5000)
	}
	return netip.MustParseAddrPort("169.254.7.1:4000"), netip.MustParseAddrPort("169.254.7.2:5000")
}

func (p policed) group() netip.AddrPort {
	if p.v6 {
		return netip.MustParseAddrPort("[ff02::fb]:5353")
	}
	return netip.MustParseAddrPort("224.0.0.251:5353")
}

func (p policed) icmp(kind4, kind6 uint8, src, dst netip.Addr) packet {
	q := packet{src: netip.AddrPortFrom(src, 0), dst: netip.AddrPortFrom(dst, 0), proto: protoICMP, icmpType: kind4,
		payload: "ping"}
	if p.v6 {
		q.proto, q.icmpType = protoICMPv6, kind6
	}
	return q
}

func (p policed) tooBig(from netip.Addr, about packet) packet {
	e := p.icmp(3, 2, from, about.src.Addr())
	e.payload, e.quote = "", &about
	if !p.v6 {
		e.icmpCode = 4
	}
	return e
}

type policyCase struct {
	name string
	run  func(t *testing.T, p policed, from, to policedHooks)
}

func policyCases() []policyCase {
	return slices.Concat(policyAddressCases(), policyRowCases(), policyFrameCases(), policyICMPCases(),
		policyDiscoveryCases(), policyForeignCases())
}

// policyAddressCases are about whose a packet is.
func policyAddressCases() []policyCase {
	return []policyCase{
		{"between pods", func(t *testing.T, p policed, from, to policedHooks) {
			first := p.first(p.client, p.backend)
			from.gets(t, "", first.frame())
			p.apply(t, false, denyIngressA)
			from.gets(t, ingressDrop, first.frame())
			to.gets(t, ingressDrop, first.frame())
			to.gets(t, ingressDrop, p.first(p.outsider, p.backend).frame())
			p.apply(t, true, denyIngressA) // audited
			before := counts(t, p.Datapath)
			from.gets(t, "", first.frame())
			equal(t, delta(t, p.Datapath, before)["audited"], 1, "audited")
			p.apply(t, false, denyEgressB)
			from.gets(t, egressDrop, first.frame())
		}},
		{"forged answers", func(t *testing.T, p policed, from, to policedHooks) {
			p.apply(t, false, denyIngressA)
			for port, flags := range map[uint16]uint8{20: flagSYN | flagACK, 21: flagACK} {
				toServer := p.first(netip.AddrPortFrom(p.client.Addr(), port), p.backend).with(func(q *packet) {
					q.proto,
						q.flags = protoTCP, flags
				})
				from.gets(t, ingressDrop, toServer.frame())
				answer := toServer.with(func(q *packet) { q.dst = netip.AddrPortFrom(q.dst.Addr(), 40000) })
				from.gets(t, "", answer.frame())
				syn := answer.with(func(q *packet) { q.flags = flagSYN })
				from.gets(t, ingressDrop, syn.frame())
				to.gets(t, ingressDrop, syn.frame())
				p.apply(t, false)
				from.gets(t, "", syn.frame())
				p.apply(t, false, denyIngressA)
			}
		}},
		{"link-local", func(t *testing.T, p policed, from, to policedHooks) {
			client, backend := p.link()
			first := p.first(client, backend)
			from.gets(t, "", first.frame())
			p.apply(t, false, denyIngressA, denyEgressB)
			from.gets(t, egressDrop, first.frame())
			to.gets(t, ingressDrop, first.frame())
			p.apply(t, false, denyIngressA, egressFromB)
			from.gets(t, egressDrop, first.frame())
			// Its answers pass.
			first.dst = netip.AddrPortFrom(backend.Addr(), 53)
			from.gets(t, "", first.frame())
			to.pod = p.client.Addr()
			to.gets(t, "", p.next(first.dst, first.src).frame())
			to.gets(t, ingressDrop, p.next(backend, client).frame())
		}},
		{"groups", func(t *testing.T, p policed, from, to policedHooks) {
			group := p.first(p.client, p.group()).with(func(q *packet) { q.ethDst = "33" })
			to.gets(t, "", group.frame())
			p.apply(t, false, denyIngressA, denyEgressB)
			from.gets(t, egressDrop, group.frame())
			to.gets(t, egressDrop, group.frame()) // as if it were for the pod alone
			group.src = p.outsider
			to.gets(t, ingressDrop, group.frame())
			p.apply(t, false, egressFromB)
			group.src, group.dst = p.client, netip.AddrPortFrom(group.dst.Addr(), 53)
			from.gets(t, "", group.frame())
		}},
		{"unicast in frames to groups", func(t *testing.T, p policed, from, to policedHooks) {
			first := p.first(p.client, p.backend).with(func(q *packet) { q.ethDst = "ff" })
			from.gets(t, "", first.frame())
			p.apply(t, false, denyIngressA)
			from.gets(t, ingressDrop, first.frame())
			to.gets(t, ingressDrop, first.frame())
			p.apply(t, true, denyIngressA)
			to.gets(t, "", first.frame())
		}},
	}
}

// policyRowCases are about which packets make, keep and end the rows of a connection.
func policyRowCases() []policyCase {
	return []policyCase{
		{"packets that begin no connection", func(t *testing.T, p policed, from, to policedHooks) {
			p.apply(t, false, fromBToA)
			open := func() uint64 {
				n := must(p.objects.Slots.Open())(t)
				return n
			}
			before := open()
			tcp := p.first(p.client, p.backend).with(func(q *packet) { q.proto = protoTCP })
			for _, hook := range []policedHooks{from, to} {
				hook.gets(t, "", tcp.with(func(q *packet) { q.flags = flagSYN | flagACK }).frame()) // of a, if it had asked
				hook.gets(t, "", tcp.with(func(q *packet) {
					q.flags, q.src, q.dst = flagACK, netip.AddrPortFrom(q.src.Addr(), 20), netip.AddrPortFrom(q.dst.Addr(), 40000)
				}).frame())
				hook.gets(t, "", tcp.with(func(q *packet) { q.flags = flagRST | flagACK }).frame())
			}
			equal(t, open(), before, "connections")
			from.gets(t, "", tcp.with(func(q *packet) {
				q.flags, q.src, q.dst = flagACK, netip.AddrPortFrom(q.src.Addr(), 40000), netip.AddrPortFrom(q.dst.Addr(), 80)
			}).frame())
			equal(t, open(), before+1, "connections")
		}},
		{"what is denied keeps no connection, and may end it", func(t *testing.T, p policed, from, to policedHooks) {
			tcp := p.first(p.client, p.backend).with(func(q *packet) { q.proto, q.flags = protoTCP, flagSYN })
			p.apply(t, false, fromBToA)
			from.gets(t, "", tcp.frame())
			p.ageAll(t, func(slot *objects.Slot) { slot.Seen -= uint64(time.Minute) })
			slots := func() (all []objects.Slot) {
				succeed(t, p.objects.Slots.Each(func(_ uint32, slot objects.Slot) bool { all = append(all, slot); return true }))
				return all
			}
			before := slots()
			p.apply(t, false, denyIngressA)
			from.gets(t, ingressDrop, tcp.with(func(q *packet) { q.flags = flagACK }).frame())
			to.gets(t, ingressDrop, p.next(p.backend, p.client).with(func(q *packet) {
				q.proto, q.flags = protoTCP,
					flagSYN|flagACK
			}).frame())
			if now := slots(); !reflect.DeepEqual(now, before) {
				t.Errorf("%+v, want %+v", now, before)
			}
			from.gets(t, ingressDrop, tcp.with(func(q *packet) { q.flags = flagRST }).frame())
			equal(t, must(p.objects.Slots.Open())(t), 0, "open connections after a reset")
		}},
	}
}

// policyFrameCases are about what is in a frame.
func policyFrameCases() []policyCase {
	return []policyCase{
		{"not of IP", func(t *testing.T, p policed, from, to policedHooks) {
			p.apply(t, false, denyIngressA, denyEgressB)
			from.gets(t, "", arp(1, "0c", "0c", own4))
			to.gets(t, "", arp(1, "0c", "0c", own4))
			for _, kind := range []uint16{0x8100, 0x88a8, 0x8847} {
				frame := p.first(p.client, p.backend).with(func(q *packet) { q.ethType = kind }).frame()
				from.gets(t, "drop_ethertype", frame)
				to.gets(t, "drop_ethertype", frame)
			}
			p.apply(t, true, denyIngressA)
			to.gets(t, "", p.first(p.client, p.backend).with(func(q *packet) { q.ethType = 0x8847 }).frame())
		}},
		{"of the link", func(t *testing.T, p policed, from, to policedHooks) {
			p.apply(t, false, denyIngressA, denyEgressB)
			report := p.icmp(0, 143, p.client.Addr(), p.group().Addr()).with(func(q *packet) {
				if q.ethDst = "33"; !p.v6 {
					q.proto = 2
				}
			})
			from.gets(t, "", report.frame())
			to.gets(t, "", report.frame())
		}},
		{"a routing header", func(t *testing.T, p policed, from, to policedHooks) {
			if !p.v6 {
				return
			}
			routed := p.first(p.client, p.backend).with(func(q *packet) { q.extensions = []extension{{routing, 2, 1}} })
			to.gets(t, "", routed.frame())
			p.apply(t, false, denyIngressA)
			from.gets(t, "drop_extensions", routed.frame())
			to.gets(t, "drop_extensions", routed.frame())
			routed.extensions[0].segmentsLeft = 0
			to.gets(t, ingressDrop, routed.frame())
		}},
		{"DHCP", func(t *testing.T, p policed, from, to policedHooks) {
			if p.v6 {
				return
			}
			ask := packet{src: netip.MustParseAddrPort("0.0.0.0:68"), dst: netip.MustParseAddrPort("255.255.255.255:67"),
				proto: protoUDP, ethDst: "ff"}
			answer := packet{src: netip.MustParseAddrPort("192.168.10.9:67"), dst: netip.AddrPortFrom(p.client.Addr(), 68),
				proto: protoUDP}
			egressFromB := strings.Replace(denyEgressB, "[Egress]", "[Egress, Ingress]", 1)
			p.apply(t, false, egressFromB)
			to.pod = p.client.Addr()
			from.gets(t, egressDrop, ask.frame())
			to.gets(t, ingressDrop, answer.frame())
			asks := objects.Sender{Endpoint: 2, Flags: objects.SenderUnguarded | objects.SenderDHCP,
				Pod: rows.EncodeAddr(p.client.Addr())}
			from.as(t, asks, "", ask.frame())
			to.as(t, asks, "", answer.frame())
			ask.dst = netip.MustParseAddrPort("255.255.255.255:68")
			from.as(t, asks, egressDrop, ask.frame())
		}},
	}
}

// policyICMPCases are about ICMP, and about fragments.
func policyICMPCases() []policyCase {
	return []policyCase{
		{"ICMP errors", func(t *testing.T, p policed, from, to policedHooks) {
			p.apply(t, false, egressFromB)
			to.pod = p.client.Addr()
			router := p.remote.Addr()
			sent := p.first(p.client, p.outsider) // port 53
			to.gets(t, ingressDrop, p.tooBig(router, sent).frame())
			from.gets(t, "", sent.frame())
			to.gets(t, "", p.tooBig(router, sent).frame())
			to.gets(t, "", p.tooBig(p.outsider.Addr(), sent).frame())
			// Another pod that is not an end of the connection.
			to.gets(t, ingressDrop, p.tooBig(p.backend.Addr(), sent).frame())
			// About another connection, and about one of somebody else.
			other := sent.with(func(q *packet) { q.src = netip.AddrPortFrom(q.src.Addr(), 999) })
			to.gets(t, ingressDrop, p.tooBig(router, other).frame())
			carried := p.tooBig(router, sent)
			carried.quote.src, carried.quote.dst = p.outsider, p.client
			to.gets(t, ingressDrop, carried.frame())
			// A connection that is no longer allowed.
			p.apply(t, false, strings.Replace(egressFromB, "53", "54", 1))
			to.gets(t, ingressDrop, p.tooBig(router, sent).frame())
		}},
		{"ICMP errors about what has no ports", func(t *testing.T, p policed, from, to policedHooks) {
			p.apply(t, false, strings.Replace(denyEgressB, "[Egress]", "[Ingress]", 1))
			to.pod = p.client.Addr()
			ping, reply := p.icmp(8, 128, p.client.Addr(), p.outsider.Addr()), p.icmp(0, 129, p.client.Addr(), p.outsider.Addr())
			gre := p.first(p.client, p.outsider).with(func(q *packet) { q.proto = unix.IPPROTO_GRE })
			for _, sent := range []packet{ping, gre} {
				to.gets(t, ingressDrop, p.tooBig(p.remote.Addr(), sent).frame())
				from.gets(t, "", sent.frame())
				to.gets(t, "", p.tooBig(p.remote.Addr(), sent).frame())
				to.gets(t, ingressDrop, p.tooBig(p.backend.Addr(), sent).frame())
			}
			to.gets(t, ingressDrop, p.tooBig(p.remote.Addr(), reply).frame())
		}},
		{"pings", func(t *testing.T, p policed, from, to policedHooks) {
			p.apply(t, false, egressFromB)
			to.pod = p.client.Addr()
			to.gets(t, ingressDrop, p.icmp(0, 129, p.backend.Addr(), p.client.Addr()).frame())
			from.gets(t, "", p.icmp(8, 128, p.client.Addr(), p.backend.Addr()).frame())
			to.gets(t, "", p.icmp(0, 129, p.backend.Addr(), p.client.Addr()).frame())
			to.gets(t, ingressDrop, p.icmp(8, 128, p.backend.Addr(), p.client.Addr()).frame())
			to.gets(t, ingressDrop, p.icmp(13, 139, p.backend.Addr(), p.client.Addr()).frame())
			late := p.icmp(0, 129, p.backend.Addr(), p.client.Addr()).with(func(q *packet) {
				q.fragment = &fragmentPart{id: 7,
					offset: 9}
			})
			to.gets(t, "", late.frame())
			from.gets(t, egressDrop, p.icmp(8, 128, p.client.Addr(), p.outsider.Addr()).frame())
		}},
		{"fragments", func(t *testing.T, p policed, from, _ policedHooks) {
			p.apply(t, false, egressFromB)
			first := p.first(p.client, p.outsider).with(func(q *packet) {
				q.fragment = &fragmentPart{id: 8, more: true,
					whole: "hello, world"}
			})
			late := first.with(func(q *packet) { q.fragment = &fragmentPart{id: 8, offset: 2} })
			from.gets(t, egressDrop, late.frame())
			from.gets(t, "", first.frame())
			from.gets(t, "", late.frame())
			first.dst = netip.AddrPortFrom(first.dst.Addr(), 54)
			first.fragment.id, late.fragment.id = 9, 9
			from.gets(t, egressDrop, first.frame())
			from.gets(t, egressDrop, late.frame())
		}},
	}
}
