// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

// Addresses of the pod that sends, of another pod, and of hosts outside.
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
	if kind == 133 { // lacks a target
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

// TestGuard sends frames of a pod on its device and on the host's: each is dropped for its reason, or goes on. With
// allowed addresses some more pass, and with the guard off all do. Without a row of the device none does.
func TestGuard(t *testing.T) {
	b := newBench(t)
	for _, h := range []objects.Hook{fromHost, fromOwn} {
		t.Run(string(h.Point), func(t *testing.T) {
			g := newGuarded(t, b, h)
			for line := range strings.Lines(string(must(os.ReadFile("testdata/packets/guard.txt"))(t))) {
				columns := strings.Split(strings.TrimSpace(line), " | ")
				if len(columns) != 3 {
					failIf(t, len(columns[0]) > 0 && line[0] != '#', "line %q", line)
					continue
				}
				t.Run(columns[0], func(t *testing.T) {
					frame := guardFrame(t, strings.Fields(columns[1]))
					drop, withAllowed := strings.CutSuffix(columns[2], " allowed")
					drop = strings.TrimPrefix(drop, "passes")
					g.check(t, podDevice{DHCP: true}, frame, drop)
					allowed := podDevice{DHCP: true, Allowed: []netip.Prefix{
						netip.PrefixFrom(vip4, 32), netip.MustParsePrefix("fd00:200::/64"),
					}}
					if withAllowed {
						drop = ""
					}
					g.check(t, allowed, frame, drop)
					g.passes(t, podDevice{Unguarded: true}, frame)
				})
			}
			t.Run("DHCP that is not the pod's", func(t *testing.T) {
				g.check(t, podDevice{}, guardFrame(t, strings.Fields("17 none4 dhcp=68")), "drop_source")
			})
			t.Run("a device without a row", func(t *testing.T) {
				succeed(t, g.objects.Senders.Delete(g.key))
				g.dropped(t, sent(outside4, protoUDP).frame(), "drop_source")
				g.dropped(t, arp(1, "0c", "0c", own4), "drop_source")
			})
		})
	}
}

func guardFrame(t *testing.T, words []string) (frame []byte) {
	t.Helper()
	addr := func(name string) netip.Addr {
		a, ok := map[string]netip.Addr{"own4": own4, "own6": own6, "other4": other4, "other6": other6, "outside4": outside4,
			"outside6": outside6, "ownLocal": ownLocal, "otherLocal": otherLocal, "none4": none4, "none6": none6, "vip4": vip4,
			"vip6": vip6, "gateway4": netip.MustParseAddr(gateway4)}[name]
		failIf(t, !ok, "no address %q", name)
		return a
	}
	kind, number, _ := strings.Cut(words[0], ":")
	fields := map[string]string{"src": "0c"}
	var p packet
	for _, word := range words[2:] {
		if key, value, ok := strings.Cut(word, "="); ok {
			fields[key] = value
		}
	}
	switch kind {
	case "arp":
		frame = arp(uint16(must(strconv.Atoi(number))(t)), fields["src"], words[1], addr(words[2]))
		if fields["cut"] != "" {
			frame = frame[:must(strconv.Atoi(fields["cut"]))(t)]
		}
		return frame
	case "nd":
		option := strings.Replace(fields["option"], "-", " ", 1)
		p = discovery(uint8(must(strconv.Atoi(number))(t)), addr(words[1]), addr(words[2]), option)
	default:
		p = sent(addr(words[1]), uint8(must(strconv.Atoi(kind))(t)))
	}
	delete(fields, "option")
	for key, value := range fields {
		n, _ := strconv.ParseUint(value, 0, 32)
		if key == "dhcp" { // from a port, to a server
			p.src, p.dst = netip.AddrPortFrom(p.src.Addr(), uint16(n)), netip.MustParseAddrPort("255.255.255.255:67")
			continue
		}
		p = p.field(t, key, value, uint32(n))
	}
	return p.frame()
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
	testkit.Check(t, bytes.Equal(out, frame) || len(out) == len(frame),
		"%d bytes after the program, want %d", len(out), len(frame))
}

// TestNodeReachesFloodedPods has the host reach the pods of a bridge that floods the host's packets: to groups, as
// neighbour solicitations, and to unknown MAC addresses. All copies but the last lack a socket. One pod has a policy,
// which lets the node in.
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
	for _, ageing := range []string{"30000", "0"} { // 0: the bridge forgets all MAC addresses
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
