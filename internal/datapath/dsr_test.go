// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// The pod of another node, and that node's own way to clients.
const (
	farPod4, farPod6   = "192.168.20.10", "fd00:20::a"
	farGate4, farGate6 = "172.16.3.1", "fd00:97::1"
	back4, back6       = "172.16.3.2", "fd00:97::2"
)

// nodes are two nodes with a datapath each, and a client that has a way to either. All answers of the second node take
// the way that does not pass the first one.
type nodes struct {
	cluster
	other *Datapath
	pod   *netns.Namespace // of the second node
}

func newNodes(t testing.TB) nodes {
	t.Helper()
	c := newCluster(t)
	n := nodes{c, openTest(t), testkit.Namespace(t, "far-pod")}
	far := network{host: c.far, pods: [2]*netns.Namespace{n.pod, c.client}}
	far.run(t, `
		-n HOST link add vp type veth peer name eth0 netns PODA
		-n HOST link add back type veth peer name back netns PODB
		-n HOST addr add `+farGate4+`/24 dev back
		-n HOST addr add `+farGate6+`/64 dev back nodad
		-n PODB addr add `+back4+`/24 dev back
		-n PODB addr add `+back6+`/64 dev back nodad
		-n PODA addr add `+farPod4+`/32 dev eth0
		-n PODA addr add `+farPod6+`/128 dev eth0 nodad
		-n HOST addr add fe80::1/64 dev vp nodad
		-n PODA link set eth0 up
		-n HOST link set vp up
		-n HOST link set back up
		-n PODB link set back up
		-n HOST route add `+farPod4+` dev vp
		-n HOST route add `+farPod6+` dev vp
		-n PODA route add default dev eth0
		-n PODA -6 route add default via fe80::1 dev eth0
		-n HOST route add `+outer4+` via `+back4+`
		-n HOST route add `+outer6+` via `+back6)
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/vp/proxy_arp"} {
		succeed(t, rtnl.In(c.far).SetSysctl(key, "1"))
	}
	c.run(t, `
		-n HOST route add `+farPod4+` via `+far4+`
		-n HOST route add `+farPod6+` via `+far6)
	must2(n.other.Endpoints().Put(t.Context(), far.attachment(0)))(t)
	for _, device := range []string{"wire", "back"} {
		must(n.other.Uplinks().Put(t.Context(), c.far, device))(t)
	}
	return n
}

// TestDSR has a client outside call a service of one node whose backend is on another, which sees the client's address
// and answers it without the first node.
func TestDSR(t *testing.T) {
	n := newNodes(t)
	var returned atomic.Int64 // packets from the service's port that the first node sent the client
	outer := must(rtnl.In(n.client).Device("outer"))(t)
	testkit.WatchPackets(t, n.client, outer.Index, func(packet []byte) {
		if bytes.Contains(packet[:min(len(packet), 60)], binary.BigEndian.AppendUint16(nil, 30099)) {
			returned.Add(1)
		}
	})
	eachOutside(t, func(t *testing.T, o outsideCase) {
		pod, unspecified := farPod4, "0.0.0.0"
		if netip.MustParseAddr(o.gate).Is6() {
			pod, unspecified = farPod6, "::"
		}
		backend := testkit.Echo(t, n.pod, o.protocol.String(), net.JoinHostPort(pod, "0"))
		for called, s := range map[string]service.Service{
			o.external: {External: true, Frontend: netip.AddrPortFrom(netip.MustParseAddr(o.external), 30099)},
			o.gate:     {NodePort: true, Frontend: netip.AddrPortFrom(netip.MustParseAddr(unspecified), 30099)},
		} {
			s.Protocol, s.DSR, s.Backends = o.protocol, service.IPIP, service.Backends(backend)
			for _, d := range []*Datapath{n.d, n.other} {
				putService(t, d, s)
			}
			for _, payload := range o.payloads() {
				first, second := settled(t, n.d), settled(t, n.other)
				peer, err := testkit.RoundTrip(t, n.client, o.protocol.String(), net.JoinHostPort(called, "30099"), payload)
				if err != nil && diffTooBig(t, n.d, first) { // a datagram is lost, and the next one smaller
					peer, err = testkit.RoundTrip(t, n.client, o.protocol.String(), net.JoinHostPort(called, "30099"), payload)
				}
				diff, far := delta(t, n.d, first), delta(t, n.other, second)
				if err != nil || peer.Addr().String() != o.client {
					t.Fatalf("%s, %d bytes: the backend saw %s, %v; want %s (counted %v and %v)", called, len(payload), peer, err,
						o.client, diff, far)
				}
				if diff["encapsulated"] == 0 || diff["encapsulated"] != diff["redirect_routed"] || diff["reverse"] != 0 {
					t.Errorf("%s, %d bytes: the first node counted %v", called, len(payload), diff)
				}
				if far["decapsulated"] == 0 || far["decapsulated"] != far["forward"] || far["reverse"] != far["redirect_routed"] ||
					far["reverse"] == 0 {
					t.Errorf("%s, %d bytes: the second node counted %v", called, len(payload), far)
				}
			}
		}
	})
	equal(t, returned.Load(), 0, "packets of the service came by the first node")
}

// diffTooBig reports whether a packet was too large since before.
func diffTooBig(t *testing.T, d *Datapath, before map[string]uint64) bool {
	t.Helper()
	return delta(t, d, before)["drop_too_big"] > 0
}

// tunnel returns p in a tunnel from another node to an address.
func (w *world) tunnel(p packet, to netip.Addr) packet {
	outer := packet{src: netip.AddrPortFrom(w.remote.Addr(), 0), dst: netip.AddrPortFrom(to, 0), proto: 4,
		payload: string(p.bytes())}
	if w.v6 {
		outer.proto = 41
	}
	return outer.arriving("aa")
}

// bytes returns the IP packet.
func (p packet) bytes() []byte {
	p.noEthernet = true
	return p.frame()
}

// TestTunnelTo checks that a packet in a tunnel to a node port, which may be of any address, opens no way for packets
// to that address that come without a tunnel.
func TestTunnelTo(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		w := pods(t, v6, protoUDP)
		w.nodePort(t, w.backend)
		elsewhere := netip.AddrPortFrom(w.remote.Addr(), w.service.Port())
		p := w.first(w.outsider, elsewhere)
		out := p.arriving("aa")
		w.check(t, fromUplink, w.tunnel(p, w.backend.Addr()), wants{actionRedirect, out.became(w.outsider, w.backend, "0a"),
			once("decapsulated", "forward", "redirect_peer", "new_connection")})
		w.check(t, fromUplink, p.arriving("aa"), wants{actionNext, nil, once("passed")})
	}
}

// nodePort stores a node port with direct server return.
func (w *world) nodePort(t *testing.T, backends ...netip.AddrPort) {
	t.Helper()
	all := netip.IPv4Unspecified()
	if w.v6 {
		all = netip.IPv6Unspecified()
	}
	s := service.Service{Frontend: netip.AddrPortFrom(all, w.service.Port()), Protocol: service.Protocol(w.proto),
		NodePort: true,
		DSR:      service.IPIP, Backends: service.Backends(backends...)}
	putService(t, w.Datapath, s)
}

// TestDSRChanges keeps open TCP connections on another node while the backends change, and sends UDP to the new one.
func TestDSRChanges(t *testing.T) {
	n := newNodes(t)
	eachOutside(t, func(t *testing.T, o outsideCase) {
		pod := map[bool]string{true: farPod4, false: farPod6}[netip.MustParseAddr(o.gate).Is4()]
		remote := testkit.Echo(t, n.pod, o.protocol.String(), net.JoinHostPort(pod, "0"))
		local := testkit.Echo(t, n.pods[0], o.protocol.String(), net.JoinHostPort(o.pod, "0"))
		s := o.service(remote)
		s.DSR = service.IPIP
		put := func() {
			t.Helper()
			for _, d := range []*Datapath{n.d, n.other} {
				putService(t, d, s)
			}
		}
		put()
		conn := must(testkit.Dial(n.client, o.protocol.String(), s.Frontend.String()))(t)
		defer func() { _ = conn.Close() }()
		questions := 0
		served := func(d *Datapath) bool {
			t.Helper()
			questions++ // each another one: its answer is not that to an earlier one
			before := counts(t, d)
			noError(t, ask(conn, fmt.Appendf(nil, "who, %d?", questions)))
			return delta(t, d, before)["reverse"] > 0
		}
		failIf(t, !served(n.other), "the second node did not answer")
		s.Backends = service.Backends(local, remote)
		put()
		failIf(t, !served(n.other), "the second node did not answer after a backend was added")
		s.Backends = service.Backends(local)
		put()
		equal(t, served(n.other), o.protocol == service.TCP, "the second node answers after its backend was removed")
	})
}
