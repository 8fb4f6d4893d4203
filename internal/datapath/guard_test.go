// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/qdisc"
	"mustang/internal/rtnl"
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

// alone is a pod that is not an endpoint, and whose guard is a tc filter next to another filter.
type alone struct {
	network
	d      *Datapath
	device int // of the host
}

func newAlone(t *testing.T) alone {
	t.Helper()
	g := alone{network: routed(t), d: openTest(t)}
	g.device = must(rtnl.In(g.host).Device("vb"))(t).Index
	g.run(t, "-n PODB addr add 192.168.10.99/32 dev eth0") // which is not the pod's
	succeed(t, rtnl.In(g.host).SetSysctl("net/ipv4/conf/vb/rp_filter", "0"))
	return g
}

func (g alone) spec() EndpointSpec {
	spec := g.attachment(1)
	spec.Addresses = []netip.Addr{netip.MustParseAddr(podB4), netip.MustParseAddr(podB6)}
	return spec
}

func (g alone) put(t *testing.T, want Change) {
	t.Helper()
	equal(t, must(g.d.Guards().Put(t.Context(), g.spec()))(t), want, "Put")
}

// program returns the filter's program, 0 if there is none.
func (g alone) program(t *testing.T) uint32 {
	t.Helper()
	return must(qdisc.Ingress(g.host, g.device))(t)
}

func (g alone) wants(t *testing.T, isGuarded bool, when string) {
	t.Helper()
	victim := listenIn(t, g.pods[0], podA4)
	defer victim.Close()
	testkit.Eventually(t, 10*time.Second, func() error { return sendUDP(g.pods[1], podB4, victim) })
	before := counts(t, g.d)
	err := sendUDP(g.pods[1], "192.168.10.99", victim)
	dropped := delta(t, g.d, before)["drop_source"] > 0
	failIf(t, dropped != isGuarded || isGuarded == (err == nil), "%s: forged: %v, dropped as such: %v", when, err, dropped)
}

// rows returns the number of pods that are not endpoints.
func (g alone) rows(t *testing.T) int {
	t.Helper()
	return len(must(Guards{g.d.objects}.list())(t))
}

func none(uint64) bool { return false }

// TestGuardFilter goes through the life of the guard of a pod that is not an endpoint: while the guard exists, no
// forged packet passes. Then it makes the guarded pod an endpoint: its programs replace the filter, without an
// unguarded moment.
func TestGuardFilter(t *testing.T) {
	g := newAlone(t)
	g.wants(t, false, "before")
	g.put(t, Added)
	g.wants(t, true, "added")
	first := g.program(t)
	g.put(t, Unchanged)
	wantLen(t, must(g.d.objects.Links())(t), 0, "links")
	err := g.d.Guards().Sweep(t.Context(), none)
	failIf(t, err != nil || g.rows(t) != 1, "Sweep: %v, %d pods are left", err, g.rows(t))

	ofAnotherBuild(t, g.d, "progs")
	openAgain(t, g.d)
	next := g.program(t)
	testkit.Check(t, next != first && next != 0, "program %d replaced program %d of another build", next, first)
	g.wants(t, true, "replaced")
	noError(t, g.d.Guards().Check(g.spec()))

	testkit.Command(t, g.host, "tc qdisc del dev vb clsact")
	failsAs[*DeviationError](t, g.d.Guards().Check(g.spec()), "Check without the filter")
	g.put(t, Added)
	g.wants(t, true, "repaired")

	b6 := []netip.Addr{netip.MustParseAddr(podB6)}
	succeed(t, errors.Join(g.d.Guards().DeletePod(t.Context(), cookieOf(t, g.pods[0]), b6),
		g.d.Guards().DeletePod(t.Context(), cookieOf(t, g.pods[1]), nil)))
	g.wants(t, true, "another pod of that address, and another address of the pod, deleted")
	succeed(t, g.d.Guards().DeletePod(t.Context(), cookieOf(t, g.pods[1]), b6))
	g.wants(t, false, "deleted")
	out := testkit.Command(t, g.host, "tc qdisc show dev vb")
	failIf(t, strings.Contains(out, "clsact") || g.rows(t) != 0, "left: %d rows, %q", g.rows(t), out)

	g.put(t, Added)
	must2(g.d.Endpoints().Put(t.Context(), g.spec()))(t)
	equal(t, g.program(t), 0, "the filter is there still: program")
	g.wants(t, true, "endpoint")
}

// TestGuardFilterRemains has calls die after the row and before the filter, and devices go: the next call leaves no
// row.
func TestGuardFilterRemains(t *testing.T) {
	g := newAlone(t)
	half := func(t *testing.T) {
		t.Helper()
		g.put(t, Added)
		succeed(t, qdisc.DeleteIngress(g.host, g.device))
	}
	next := map[string]func(t *testing.T) error{
		"Put": func(t *testing.T) error {
			g.put(t, Added)
			g.wants(t, true, "put")
			return g.d.Guards().DeleteAll(t.Context())
		},
		"DeletePod": func(t *testing.T) error {
			return g.d.Guards().DeletePod(t.Context(), cookieOf(t, g.pods[1]), []netip.Addr{netip.MustParseAddr(podB4)})
		},
		"Sweep": func(t *testing.T) error { return g.d.Guards().Sweep(t.Context(), none) },
		"Sweep inside": func(t *testing.T) error {
			return g.host.Do(func() error { return g.d.Guards().Sweep(t.Context(), none) })
		},
	}
	for name, do := range next {
		t.Run(name, func(t *testing.T) {
			half(t)
			err := do(t)
			failIf(t, err != nil || g.rows(t) != 0, "%v; %d rows are left", err, g.rows(t))
		})
	}
	g.put(t, Added)
	g.run(t, "-n HOST link del vb")
	err := next["Sweep"](t)
	failIf(t, err != nil || g.rows(t) != 0, "Sweep without the device: %v; %d rows are left", err, g.rows(t))
}

// TestGuardKnowsBothEnds takes away one of the two rows of a netkit, which is a deviation, and puts the pod again.
func TestGuardKnowsBothEnds(t *testing.T) {
	d := openTest(t)
	pod := &podDevice{Point: objects.AttachNetkit, IfIndex: 5, Peer: 6, Netns: 7}
	for _, gone := range []objects.SenderKey{{Ifindex: 5}, {Netns: 7, Ifindex: 6}} {
		changed, err := putSender(d.objects, pod.senderRow(2, false))
		testkit.Require(t, err == nil && changed, "Put changed rows: %v, %v", changed, err)
		wantLen(t, must(pod.guardDeviations(d.objects, 2, false))(t), 0, "with both")
		succeed(t, d.objects.Senders.Delete(gone))
		wantLen(t, must(pod.guardDeviations(d.objects, 2, false))(t), 1, "without %v", gone)
	}
}
