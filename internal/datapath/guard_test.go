// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

// guardCase is a frame that a pod sends, and why it is dropped; empty: it is not.
type guardCase struct {
	name  string
	frame []byte
	drop  string
}

// Addresses of the pod that sends, of another pod, and of nobody.
var (
	own4, own6     = netip.MustParseAddr(podB4), netip.MustParseAddr(podB6)
	other4, other6 = netip.MustParseAddr(podA4), netip.MustParseAddr(podA6)
	outside4       = netip.MustParseAddr("8.8.8.8")
	outside6       = netip.MustParseAddr("2001:db8::8")
	ownLocal       = netip.MustParseAddr("fe80::e0c:cff:fe0c:c0c") // of MAC address 0c:0c:0c:0c:0c:0c
	otherLocal     = netip.MustParseAddr("fe80::80a:aff:fe0a:a0a")
	none4, none6   = netip.IPv4Unspecified(), netip.IPv6Unspecified()
	vip4, vip6     = netip.MustParseAddr("192.168.10.200"), netip.MustParseAddr("fd00:200::5")
)

// sent returns a packet of the pod to nobody in particular.
func sent(from netip.Addr, proto uint8) packet {
	to := netip.MustParseAddrPort("203.0.113.9:53")
	if from.Is6() {
		to = netip.MustParseAddrPort("[2001:db8::9]:53")
	}
	return packet{ethSrc: "0c", src: netip.AddrPortFrom(from, 4000), dst: to, proto: proto, payload: "hello"}
}

// arp returns an ARP packet about IPv4 on Ethernet.
func arp(operation uint16, ethSrc, sender string, ip netip.Addr) []byte {
	body := []byte{0, 1, 8, 0, 6, 4, 0, byte(operation)}
	body = append(append(append(body, mac(sender)...), ip.AsSlice()...), make([]byte, 10)...)
	frame := append(mac("ff"), mac(ethSrc)...)
	return append(append(binary.BigEndian.AppendUint16(frame, 0x0806), body...), make([]byte, 18)...)
}

// discovery returns a message of neighbour discovery with a target and an option: "1 0c" has the type 1 and a MAC
// address.
func discovery(kind uint8, from, target netip.Addr, option string) packet {
	p := sent(from, protoICMPv6)
	p.icmpType, p.hops = kind, 255
	body := target.AsSlice()
	if kind == 133 { // has no target
		body = nil
	}
	if kind == 134 {
		body = make([]byte, 8)
	}
	if option != "" {
		body = append(append(body, option[0]-'0', 1), mac(option[2:])...)
	}
	p.payload = string(body)
	return p
}

func guardCases() []guardCase {
	behind := func(p packet) packet {
		return p.with(func(p *packet) { p.extensions = append(p.extensions, extension{kind: destinationOptions}) })
	}
	dhcp := func(from netip.Addr, port uint16) packet {
		return sent(from, protoUDP).with(func(p *packet) {
			p.src = netip.AddrPortFrom(from, port)
			p.dst = netip.MustParseAddrPort("255.255.255.255:67")
		})
	}
	mac2 := func(p packet) []byte { return p.with(func(p *packet) { p.ethSrc = "0a" }).frame() }
	ether := func(kind uint16) []byte {
		return sent(own4, protoUDP).with(func(p *packet) { p.ethType = kind }).frame()
	}
	const rs, ra, ns, na, redirect, mld = 133, 134, 135, 136, 137, 143
	return []guardCase{
		{"own IPv4", sent(own4, protoTCP).frame(), ""},
		{"own IPv6", sent(own6, protoUDP).frame(), ""},
		{"own IPv6, behind an extension header", behind(sent(own6, protoUDP)).frame(), ""},
		{"own, of another protocol", sent(own4, protoGRE).frame(), ""},
		{"another pod's IPv4", sent(other4, protoUDP).frame(), "drop_source"},
		{"another pod's IPv6", sent(other6, protoTCP).frame(), "drop_source"},
		{"outside", sent(outside4, protoUDP).frame(), "drop_source"},
		{"outside, IPv6", sent(outside6, protoUDP).frame(), "drop_source"},
		{"outside, behind an extension header", behind(sent(outside6, protoUDP)).frame(), "drop_source"},
		{"no address", sent(none4, protoUDP).frame(), "drop_source"},
		{"no address, IPv6", sent(none6, protoUDP).frame(), "drop_source"},
		{"another MAC", mac2(sent(own4, protoTCP)), "drop_source_mac"},
		{"another MAC, IPv6", mac2(sent(own6, protoTCP)), "drop_source_mac"},
		{"another pod altogether", mac2(sent(other4, protoTCP)), "drop_source_mac"},
		{"own link-local", sent(ownLocal, protoUDP).frame(), ""},
		{"another pod's link-local", sent(otherLocal, protoUDP).frame(), "drop_source"},
		{"ICMPv6 error", sent(other6, protoICMPv6).with(func(p *packet) { p.icmpType = 1 }).frame(), "drop_source"},
		{"ping", sent(own6, protoICMPv6).with(func(p *packet) { p.icmpType = 128 }).frame(), ""},
		{"DHCP", dhcp(none4, 68).frame(), ""},
		{"DHCP, as a server", dhcp(none4, 67).frame(), "drop_source"},

		{"ARP request", arp(1, "0c", "0c", own4), ""},
		{"ARP reply", arp(2, "0c", "0c", own4), ""},
		{"ARP probe", arp(1, "0c", "0c", none4), ""},
		{"ARP reply for another pod", arp(2, "0c", "0c", other4), "drop_neighbour"},
		{"ARP request as another pod", arp(1, "0c", "0c", other4), "drop_neighbour"},
		{"ARP for the gateway", arp(2, "0c", "0c", netip.MustParseAddr(gateway4)), "drop_neighbour"},
		{"ARP reply with another MAC inside", arp(2, "0c", "0a", own4), "drop_neighbour"},
		{"ARP reply from another MAC", arp(2, "0a", "0a", own4), "drop_source_mac"},
		{"ARP of another operation", arp(9, "0c", "0c", own4), "drop_neighbour"},
		{"ARP, cut off", arp(1, "0c", "0c", own4)[:40], "drop_malformed"},

		{"solicitation", discovery(ns, own6, other6, "1 0c").frame(), ""},
		{"solicitation, link-local", discovery(ns, ownLocal, other6, "1 0c").frame(), ""},
		{"solicitation with another MAC", discovery(ns, own6, other6, "1 0a").frame(), "drop_neighbour"},
		{"solicitation as another pod", discovery(ns, other6, own6, "1 0c").frame(), "drop_source"},
		{"duplicate address detection", discovery(ns, none6, own6, "").frame(), ""},
		{"duplicate address detection of another's", discovery(ns, none6, other6, "").frame(), "drop_neighbour"},
		{"advertisement", discovery(na, own6, own6, "2 0c").frame(), ""},
		{"advertisement of the link-local address", discovery(na, ownLocal, ownLocal, "2 0c").frame(), ""},
		{"advertisement for another pod", discovery(na, own6, other6, "2 0c").frame(), "drop_neighbour"},
		{"advertisement with another MAC", discovery(na, own6, own6, "2 0a").frame(), "drop_neighbour"},
		{"advertisement behind an extension header", behind(discovery(na, own6, other6, "2 0c")).frame(), "drop_neighbour"},
		{"router solicitation", discovery(rs, none6, none6, "").frame(), ""},
		{"router advertisement", discovery(ra, ownLocal, none6, "1 0c").frame(), "drop_neighbour"},
		{"redirect", discovery(redirect, ownLocal, none6, "").frame(), "drop_neighbour"},
		{"multicast listener report", sent(none6, protoICMPv6).with(func(p *packet) { p.icmpType = mld }).frame(), ""},

		{"VLAN", ether(0x8100), "drop_ethertype"},
		{"service VLAN", ether(0x88a8), "drop_ethertype"},
		{"LLDP", ether(0x88cc), "drop_ethertype"},
		{"EAPOL", ether(0x888e), "drop_ethertype"},
		{"MPLS", ether(0x8847), "drop_ethertype"},
		{"spanning tree", ether(38), "drop_ethertype"},

		{"allowed address", sent(vip4, protoTCP).frame(), "drop_source"},
		{"allowed prefix", sent(vip6, protoTCP).frame(), "drop_source"},
		{"ARP for an allowed address", arp(1, "0c", "0c", vip4), "drop_neighbour"},
		{"advertisement of an allowed address", discovery(na, own6, vip6, "2 0c").frame(), "drop_neighbour"},
	}
}

// allowedCases are those that pass with allowed addresses.
func allowedCases() map[string]bool {
	return map[string]bool{
		"allowed address": true, "allowed prefix": true, "ARP for an allowed address": true,
		"advertisement of an allowed address": true, "router advertisement": true, "redirect": true,
	}
}

// TestGuard sends frames of a pod on its device and on the host's: each is dropped for its reason, or goes on. With
// allowed addresses some more pass, and with the guard off all do. Without a row of the device none does.
func TestGuard(t *testing.T) {
	b := newBench(t)
	for _, h := range []objects.Hook{fromHost, fromOwn} {
		t.Run(string(h.Point), func(t *testing.T) {
			g := newGuarded(t, b, h)
			for _, c := range guardCases() {
				t.Run(c.name, func(t *testing.T) {
					g.check(t, podDevice{DHCP: true}, c.frame, c.drop)
					allowed := podDevice{DHCP: true, Allowed: []netip.Prefix{
						netip.PrefixFrom(vip4, 32), netip.MustParsePrefix("fd00:200::/64"),
					}}
					drop := c.drop
					if allowedCases()[c.name] {
						drop = ""
					}
					g.check(t, allowed, c.frame, drop)
					g.passes(t, podDevice{Unguarded: true}, c.frame)
				})
			}
			t.Run("DHCP that is not the pod's", func(t *testing.T) {
				frame := sent(none4, protoUDP).with(func(p *packet) {
					p.src, p.dst = netip.AddrPortFrom(none4, 68), netip.MustParseAddrPort("255.255.255.255:67")
				}).frame()
				g.check(t, podDevice{}, frame, "drop_source")
			})
			t.Run("a device without a row", func(t *testing.T) {
				succeed(t, g.objects.Senders.Delete(g.key))
				g.dropped(t, sent(outside4, protoUDP).frame(), "drop_source")
				g.dropped(t, arp(1, "0c", "0c", own4), "drop_source")
			})
		})
	}
}

// guarded is a pod on the device of test packets.
type guarded struct {
	*bench
	hook objects.Hook
	key  objects.SenderKey
}

func newGuarded(t *testing.T, b *bench, h objects.Hook) *guarded {
	t.Helper()
	b.clear(t)
	g := &guarded{bench: b, hook: h}
	e := Endpoint{ID: 2, IfIndex: 1, PodMAC: mac("0c"), NodeMAC: mac("ee"), netns: ownCookie(t), flags: intoPeer,
		Host: true}
	if h.Point == objects.AttachPod {
		e.flags, e.Host, e.segment = 0, false, 's'
	}
	g.key = senderKey(e.Host, e.netns, 1)
	for _, ip := range []netip.Addr{own4, own6} {
		e.IP = ip
		succeed(t, b.Endpoints().write([]Endpoint{e}))
	}
	b.endpoint(t, pod{1, h.Point, "0a", "s"}, other4)
	b.endpoint(t, pod{1, h.Point, "0a", "s"}, other6)
	t.Cleanup(func() { b.sendAnything(t) })
	return g
}

// as stores what the guard knows of the pod.
func (g *guarded) as(t *testing.T, d podDevice) {
	t.Helper()
	d.Point, d.PodMAC, d.LinkLocal, d.IfIndex, d.Netns = g.hook.Point, mac("0c"), ownLocal, 1, ownCookie(t)
	must(putSender(g.objects, d.senderRow(2, false)))(t)
}

func (g *guarded) check(t *testing.T, d podDevice, frame []byte, drop string) {
	t.Helper()
	if drop == "" {
		g.passes(t, d, frame)
		return
	}
	g.as(t, d)
	g.dropped(t, frame, drop)
}

func (g *guarded) dropped(t *testing.T, frame []byte, drop string) {
	t.Helper()
	g.checkFrame(t, g.hook, frame, wants{actionDrop, nil, once(drop)})
}

// passes fails the test if the guard drops the frame.
func (g *guarded) passes(t *testing.T, d podDevice, frame []byte) {
	t.Helper()
	g.as(t, d)
	before := counts(t, g.Datapath)
	_, out := g.run(t, g.hook, frame)
	for name, n := range delta(t, g.Datapath, before) {
		switch name {
		case "drop_source", "drop_source_mac", "drop_neighbour", "drop_ethertype", "drop_malformed":
			failIf(t, !d.Unguarded || name != "drop_malformed", "%s: %d", name, n)
		}
	}
	if !bytes.Equal(out, frame) && len(out) != len(frame) {
		t.Errorf("%d bytes after the program, want %d", len(out), len(frame))
	}
}

// TestNodeReachesFloodedPods has the host reach the pods of a bridge that floods what the host sends: to groups, as
// neighbour solicitations, and to MAC addresses that it does not know. All copies but the last have no socket. One pod
// has a policy, which lets the node in.
func TestNodeReachesFloodedPods(t *testing.T) {
	d, n := openTest(t), bridged(t)
	// the last port
	n.run(t, "-n HOST link add vc type veth peer name spare\n-n HOST link set vc master br0 up\n-n HOST link set spare up")
	for i, ns := range n.pods {
		pod := labelledPod(string(rune('a' + i)))
		must2(d.Endpoints().Put(t.Context(), EndpointSpec{Namespace: ns, IfName: "eth0", Host: n.host, Pod: pod}))(t)
	}
	applyPolicies(t, d, onlyOutsideToA)
	before := counts(t, d)
	var pods []net.PacketConn
	for i, addresses := range [2][2]string{{podA4, podA6}, {podB4, podB6}} {
		for _, addr := range addresses {
			pods = append(pods, listenIn(t, n.pods[i], addr))
		}
	}
	for _, ageing := range []string{"30000", "0"} { // 0: the bridge knows no MAC address
		n.run(t, "-n HOST link set br0 type bridge ageing_time "+ageing)
		for i, pod := range pods {
			n.run(t, "-n HOST neigh flush dev br0\n-n HOST -6 neigh flush dev br0")
			gateway := [2]string{gateway4, gateway6}[i%2]
			testkit.Eventually(t, 5*time.Second, func() error {
				if err := sendUDP(n.host, gateway, pod); err != nil {
					return fmt.Errorf("host to %s, ageing time %s: %w", pod.LocalAddr(), ageing, err)
				}
				return nil
			})
		}
	}
	equal(t, delta(t, d, before)["drop_source"], 0, "drop_source")
}
