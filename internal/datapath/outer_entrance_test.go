// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

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
	deep := testkit.Namespace(t, "deep")
	f.another(t, "eth5")
	f.run(t, strings.ReplaceAll(`
		-n PODB link set eth5 netns DEEP
		-n DEEP link set eth5 up
		-n PODB link add over type veth peer name under
		-n PODB link set over up
		-n PODB link set under up`, "DEEP", deep.Name()))
	device := func(name string, ns *netns.Namespace, on string) sender {
		d := must(rtnl.In(ns).Device(on))(t)
		return sender{name: name, ns: ns, index: d.Index, mac: d.MAC, stranger: true}
	}
	all := []sender{device("from a network namespace of its own", deep, "eth5")}
	second := f.another(t, "eth6")
	f.tc(t, "qdisc add dev over clsact")
	f.tc(t, "filter add dev over egress protocol all u32 match u32 0 0 action mirred egress mirror dev eth6")
	copied := device("as a copy", f.pods[1], "over")
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
		-n DEEP link set eth0 up`, "DEEP", deep.Name()))
	return append(all, device("by a bridge", deep, "eth0"))
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
