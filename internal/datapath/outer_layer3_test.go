// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/policy"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// Addresses of a pod behind a veth.
var routedPod = [2]netip.Addr{netip.MustParseAddr("192.168.30.30"), netip.MustParseAddr("fd00:30::30")}

// TestHostTranslatesLayer3 has the host give packets of a pod that it routes another destination: a machine outside, a
// pod of another link mode, or the host.
func TestHostTranslatesLayer3(t *testing.T) {
	onLinks(t, "ipvlan-l3, ipvlan-l3s", func(t *testing.T, m linkMode) {
		f := newForger(t, m)
		o, veth := f.addOutside(t), f.addVeth(t, nil)
		f.run(t, "-n HOST addr add "+behindHost()[0]+"/32 dev lo")
		for i, at := range []struct {
			ns   *netns.Namespace
			addr string
		}{{o.ns, beyond[0].String()}, {veth, routedPod[0].String()}, {f.network.host, behindHost()[0]}} {
			victim := listenIn(t, at.ns, at.addr)
			service := netip.AddrFrom4([4]byte{10, 96, 7, byte(i + 1)})
			f.run(t, "-n HOST route add "+service.String()+" dev up0")
			testkit.Command(t, f.network.host, fmt.Sprintf(
				"nft table ip t%d { chain c { type nat hook output priority -100; ip daddr %s dnat to %s; }; }",
				i, service, at.addr))
			testkit.Eventually(t, 5*time.Second, func() error {
				f.honest().say(t, own4, netip.AddrPortFrom(service, 4444), "translated")
				return f.expect(victim, "translated")
			})
		}
	})
}

func (f *forger) addVeth(t *testing.T, labels map[string]string) *netns.Namespace {
	t.Helper()
	ns := testkit.Namespace(t, "veth")
	f.run(t, strings.ReplaceAll(`
		-n HOST link add vc type veth peer name eth0 netns VETH
		up HOST vc
		up VETH eth0 `+routedPod[0].String()+`/32 `+routedPod[1].String()+`/128
		-n VETH route add default dev eth0
		-n VETH -6 route add default dev eth0
		-n HOST route add `+routedPod[0].String()+` dev vc
		-n HOST route add `+routedPod[1].String()+` dev vc`, "VETH", ns.Name()))
	trustSources(t, ns, "eth0")
	eth0 := must(rtnl.In(ns).Device("eth0"))(t)
	for _, a := range routedPod { // the host must resolve its neighbour
		f.run(t, "-n HOST neigh replace "+a.String()+" lladdr "+eth0.MAC.String()+" dev vc nud permanent")
	}
	spec := EndpointSpec{Namespace: ns, IfName: "eth0", Host: f.network.host}
	if labels != nil {
		spec.Pod = &policy.Pod{Namespace: "default", Name: "c", Labels: labels}
	}
	must2(f.d.Endpoints().Put(t.Context(), spec))(t)
	return ns
}

// TestLoopbackIsGuarded checks that only pods of ipvlan, whose packets the host may route, attach a program at the
// host's loopback device, and that it is detached with them.
func TestLoopbackIsGuarded(t *testing.T) {
	onLinks(t, "macvlan, ipvlan-l2, ipvlan-l3, ipvlan-l3s", func(t *testing.T, m linkMode) {
		n, d := m.make(t), openTest(t)
		n.attachBoth(t, d)
		at := func() bool {
			return slices.ContainsFunc(must(d.objects.Links())(t), func(k objects.Link) bool {
				return k.Hook.Point == objects.AttachParent && k.IfIndex == 1
			})
		}
		equal(t, at(), strings.HasPrefix(m.name, "ipvlan"), "at the loopback device")
		for i := range n.pods {
			succeed(t, d.Endpoints().DeleteDevice(t.Context(), n.attachment(i)))
		}
		failIf(t, at(), "the last pod has left the program at the loopback device")
	})
}

// TestFirewallAnswersForPod has the host's firewall refuse a connection between two pods by a reset, which has the
// other pod's address.
func TestFirewallAnswersForPod(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.attachBoth(t, d)
	testkit.Command(t, n.host, "nft table inet t { chain c { type filter hook forward priority 0; "+
		"meta l4proto tcp reject with tcp reset; }; }")
	for _, to := range []string{podA4, podA6} {
		failsWith(t, errOf(testkit.Dial(n.pods[1], "tcp", net.JoinHostPort(to, "4444"))), unix.ECONNREFUSED, "%s", to)
	}
}

// sprayed is more than twice the number of seals for one expected match by chance, if the remains of a seal after
// routing counted.
const sprayed = 150_000

// TestSealsAreNotReused has root of a pod send its own packets, with seals, to very many destinations. Behind the
// program a filter redirects them to a network namespace of the pod's, which gives them another pod's address and
// forwards them to the host through a second device. IP clears most of skb->cb there, as where the host routes
// packets of layer 3. None arrives, and outer_seal seals none for a pod.
func TestSealsAreNotReused(t *testing.T) {
	testkit.RequireTool(t, "nft")
	f := newForger(t, linkMode{"macvlan", slaves})
	hostMAC := net.HardwareAddr(f.reachHost(t))
	deep := f.nest(t).ns
	f.run(t, strings.ReplaceAll(`
		-n PODB link add over type veth peer name under netns DEEP
		-n PODB link set over up
		-n DEEP link set under up
		-n DEEP link set lo up
		-n DEEP -6 route add fd00:10::/64 dev deep
		-n DEEP -6 neigh add `+gateway6+` lladdr `+hostMAC.String()+` dev deep nud permanent
		-n DEEP -6 neigh add `+podA6+` lladdr `+hostMAC.String()+` dev deep nud permanent`, "DEEP", deep.Name()))
	succeed(t, rtnl.In(deep).SetSysctl("net/ipv6/conf/all/forwarding", "1"))
	under := must(rtnl.In(deep).Device("under"))(t)
	f.tc(t, "qdisc add dev eth0 clsact")
	f.tc(t, "filter add dev eth0 egress protocol ipv6 u32 match ip6 dst fd01::/16 action mirred egress redirect dev over")
	const forged, outside = "fd00:10::c", "2001:db8::8"
	for name, victim := range map[string]net.PacketConn{
		"to the host": listenIn(t, f.network.host, gateway6), "to a pod by the host": listenIn(t, f.pods[0], podA6),
	} {
		t.Run(name, func(t *testing.T) {
			to := victim.LocalAddr().(*net.UDPAddr).AddrPort()
			rewriteIn := func(source string) {
				testkit.Command(t, deep, fmt.Sprintf("nft add table ip6 t; delete table ip6 t; add table ip6 t; "+
					"add chain ip6 t c { type filter hook prerouting priority -300; }; "+
					"add rule ip6 t c ip6 daddr fd01::/16 ip6 saddr set %s ip6 daddr set %s", source, to.Addr()))
			}
			spray := func(n int, text string) {
				succeed(t, f.spray(under.MAC, to.Port(), n, text))
			}
			rewriteIn(outside)
			testkit.Eventually(t, 10*time.Second, func() error { spray(1, "warm"); return f.expect(victim, "warm") })
			rewriteIn(forged)
			before := counts(t, f.d)
			spray(sprayed, "forged")
			dropped := delta(t, f.d, before)["drop_source"]
			testkit.Check(t, dropped >= sprayed/2, "drop_source: %d of %d that were sent", dropped, sprayed)
			rewriteIn(outside)
			spray(1, "passes")
			noError(t, f.expect(victim, "passes"))
		})
	}
}

// spray sends datagrams of the pod to as many destinations.
func (f *forger) spray(next net.HardwareAddr, port uint16, n int, text string) error {
	return packetSocket.with(f.pods[1], func(fd int) error {
		to := netip.MustParseAddr("fd01::").As16()
		p := packet{src: netip.MustParseAddrPort("[" + podB6 + "]:4000"), proto: protoUDP, payload: text}
		for i := range n {
			binary.BigEndian.PutUint32(to[12:], uint32(i))
			p.dst = netip.AddrPortFrom(netip.AddrFrom16(to), port)
			frame := slices.Concat(next, f.own, []byte{0x86, 0xdd}, p.ip())
			at := &unix.SockaddrLinklayer{Ifindex: f.device.Index, Protocol: unix.ETH_P_IPV6>>8 | unix.ETH_P_IPV6&0xff<<8}
			if err := unix.Sendto(fd, frame, 0, at); err != nil {
				return err
			}
		}
		return nil
	})
}

func (f *forger) addRouted(t *testing.T) [2]netip.Addr {
	t.Helper()
	addrs := [2]netip.Addr{netip.MustParseAddr("192.168.20.20"), netip.MustParseAddr("fd00:20::20")}
	for _, ip := range addrs {
		succeed(t, f.d.Endpoints().write([]Endpoint{{ID: 98, IP: ip, Host: true, IfIndex: 12345, PodMAC: mac("44"),
			NodeMAC: mac("45"), Owner: 1, netns: 12345, flags: intoPeer}}))
	}
	return addrs
}

// strangers are the pod's ways to send that hide the sender.
func (f *forger) strangers(t *testing.T) []sender {
	t.Helper()
	if f.nobody == nil {
		f.nobody = f.makeStrangers(t)
	}
	all := slices.Clone(f.nobody)
	for i := range all {
		all[i].next = f.next
	}
	return all
}

func (f *forger) makeStrangers(t *testing.T) []sender {
	t.Helper()
	all := []sender{f.nest(t)}
	f.run(t, `
		-n PODB link add over type veth peer name under
		up PODB over
		up PODB under`)
	second := f.another(t, "eth6")
	f.tc(t, "qdisc add dev over clsact")
	f.tc(t, "filter add dev over egress protocol all u32 match u32 0 0 action mirred egress mirror dev eth6")
	copied := senderBy(t, "as a copy", f.pods[1], "over")
	copied.mac = second.MAC
	all = append(all, copied)
	if f.device.Kind != "macvlan" { // an ipvlan cannot be a bridge's port
		return all
	}
	f.another(t, "eth7")
	f.run(t, strings.ReplaceAll(`
		-n PODB link add inner type bridge forward_delay 0 stp_state 0
		-n PODB link set inner up
		-n PODB link add port type veth peer name eth0 netns DEEP
		-n PODB link set port master inner up
		-n PODB link set eth7 master inner up
		-n DEEP link set eth0 up`, "DEEP", all[0].ns.Name()))
	return append(all, senderBy(t, "by a bridge", all[0].ns, "eth0"))
}

// TestRouterReturnsToHost has a router on the network of the parent return a pod's packets to the host, also packets
// from an address that the pod is allowed. Packets with the same addresses that no pod has sent, and packets with
// other addresses of the pod, do not arrive.
func TestRouterReturnsToHost(t *testing.T) {
	onLinks(t, "macvlan, ipvlan-l2", func(t *testing.T, m linkMode) {
		f := newForger(t, m)
		f.reachHost(t)
		o := f.addOutside(t)
		o.routeBack(t)
		allowed := [2]netip.Addr{netip.MustParseAddr("192.168.10.50"), netip.MustParseAddr("fd00:10::50")}
		spec := f.attachment(1)
		for _, a := range allowed {
			spec.Allowed = append(spec.Allowed, netip.PrefixFrom(a, a.BitLen()))
		}
		must2(f.d.Endpoints().Put(t.Context(), spec))(t)
		for family, to := range behindHost() {
			own, outside := owns[family], outsides[family]
			victim := listenIn(t, f.network.host, to)
			other := listenIn(t, f.network.host, []string{gateway4, gateway6}[family])
			up1 := must(rtnl.In(o.ns).Device("up1"))(t)
			wire, router := sender{ns: o.ns, index: up1.Index, mac: up1.MAC, next: f.reachHost(t)}, o.honest()
			router.next = up1.MAC
			before := counts(t, f.d)
			wire.say(t, own, addrOf(victim), "forged")
			wire.say(t, outside, addrOf(victim), "passes")
			noError(t, f.expect(victim, "passes"))
			equal(t, delta(t, f.d, before)["drop_source"], 1, "drop_source")
			for _, from := range []netip.Addr{own, allowed[family]} {
				testkit.Eventually(t, 10*time.Second, func() error {
					router.say(t, from, addrOf(victim), "returned")
					return f.expect(victim, "returned")
				})
			}
			wire.say(t, own, addrOf(other), "forged")
			wire.say(t, outside, addrOf(other), "passes")
			noError(t, f.expect(other, "passes"))
		}
	})
}

func behindHost() []string { return []string{"172.31.0.1", "fd00:31::1"} }

// routeBack makes the machine outside a router to the addresses behindHost.
func (o *outsider) routeBack(t *testing.T) {
	t.Helper()
	setForwarding(t, o.ns, "1")
	to := behindHost()
	o.run(t, strings.ReplaceAll(`
		-n HOST addr add `+to[0]+`/32 dev lo
		-n HOST addr add `+to[1]+`/128 dev lo
		-n OUT addr add 192.168.10.254/32 dev up1
		-n OUT addr add fd00:10::fe/128 dev up1 nodad
		-n OUT route add `+to[0]+` via `+gateway4+`
		-n OUT route add `+to[1]+` via `+gateway6, "OUT", o.ns.Name()))
}

// TestParentIsBridge has a pod on a bridge reach the host, whose device is a macvlan on that bridge, like other pods'
// devices. A pod there cannot pose as the host.
func TestParentIsBridge(t *testing.T) {
	n := newNetwork(t)
	n.run(t, `
		-n HOST link add br0 type bridge forward_delay 0 stp_state 0
		-n HOST link set br0 up
		-n HOST link add mst-host link br0 type macvlan mode bridge
		up HOST mst-host `+gateway4+`/24 `+gateway6+`/64
		-n HOST link add va type veth peer name eth0 netns PODA
		-n HOST link set va master br0 up
		-n HOST link add link br0 name eth0 netns PODB type macvlan mode bridge`)
	n.onLink(t)
	f := &forger{network: n, mode: "macvlan", d: openTest(t)}
	n.attachBoth(t, f.d)
	f.next = f.reachHost(t)
	f.device = must(rtnl.In(n.pods[1]).Device("eth0"))(t)
	ways := f.strangers(t)
	for family, gateway := range []string{gateway4, gateway6} {
		victim := listenIn(t, n.host, gateway)
		for i, from := range [2][2]string{{podA4, podB4}, {podA6, podB6}}[family] {
			eth0 := must(rtnl.In(n.pods[i]).Device("eth0"))(t)
			pod := sender{ns: n.pods[i], index: eth0.Index, mac: eth0.MAC, next: f.next}
			testkit.Eventually(t, 5*time.Second, func() error {
				pod.say(t, netip.MustParseAddr(from), addrOf(victim), "honest")
				return f.expect(victim, "honest")
			})
		}
		f.try(t, victim, []netip.Addr{[]netip.Addr{other4, other6}[family]}, ways)
	}
}

func (by sender) say(t *testing.T, from netip.Addr, to netip.AddrPort, text string) {
	t.Helper()
	by.send(t, by.datagram(from, to, text))
}

func (by sender) datagram(from netip.Addr, to netip.AddrPort, text string) []byte {
	return by.frame(packet{src: netip.AddrPortFrom(from, 4000), dst: to, proto: protoUDP, payload: text})
}

func (by sender) frame(p packet) []byte {
	kind := []byte{0x08, 0x00}
	if p.v6() {
		kind = []byte{0x86, 0xdd}
	}
	if by.tagged {
		kind = append([]byte{0x81, 0x00, 0, 5}, kind...)
	}
	return slices.Concat(by.next, by.mac, kind, p.ip())
}

// send sends a frame by a packet socket, or by AF_XDP.
func (by sender) send(t *testing.T, frame []byte) {
	t.Helper()
	if by.xdp {
		// EBUSY: the kernel has dropped it, as AF_XDP leaves the protocol of packets unset, and ipvlan needs it.
		if err := sendXDP(by.ns, by.index, frame); !errors.Is(err, unix.EBUSY) {
			succeed(t, err)
		}
		return
	}
	// ENOBUFS: a program on the pod's own device, or on the way, has dropped it.
	if err := by.raw(frame); !errors.Is(err, unix.ENOBUFS) {
		succeed(t, err)
	}
}

var packetSocket = socketKind{unix.AF_PACKET, unix.SOCK_RAW, 0}

func (by sender) raw(frame []byte) error {
	return packetSocket.with(by.ns, func(fd int) error {
		if by.skip {
			if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
				return err
			}
		}
		proto := cmp.Or(by.kernel, binary.BigEndian.Uint16(frame[12:]))
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: by.index, Protocol: proto<<8 | proto>>8})
	})
}
