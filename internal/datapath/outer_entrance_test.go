// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/device"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestForgingToHostNested has root in a pod send to the host from the addresses of other pods, one on the same parent and one that
// the host routes to, in ways that leave nobody known as the sender: from a network namespace of its own, by a bridge, and as a
// copy that a filter makes. The host gets none of that; from an address outside it gets the same.
func TestForgingToHostNested(t *testing.T) {
	onLinks(t, "macvlan, ipvlan-l2", func(t *testing.T, m linkMode) {
		f := newForger(t, m)
		f.next = f.reachHost(t)
		routed := f.addRouted(t)
		ways := f.strangers(t)
		for family, gateway := range []string{gateway4, gateway6} {
			victim := listenIn(t, f.network.host, gateway)
			for _, way := range ways {
				pods := []netip.Addr{netip.MustParseAddr([]string{"192.168.10.12", "fd00:10::c"}[family]), routed[family]}
				for _, from := range pods {
					t.Run(fmt.Sprintf("from %s, %s", from, way.name), func(t *testing.T) {
						f.sendAway(t, victim, from, way)
						f.tryStranger(t, victim, from, [2]netip.Addr{outside4, outside6}[family], way)
					})
				}
			}
		}
	})
}

// addRouted adds the addresses of a pod that the host routes to.
func (f *forger) addRouted(t *testing.T) [2]netip.Addr {
	t.Helper()
	addrs := [2]netip.Addr{netip.MustParseAddr("192.168.20.20"), netip.MustParseAddr("fd00:20::20")}
	for _, ip := range addrs {
		if err := f.d.Endpoints().write([]Endpoint{{
			ID: 98, IP: ip, Host: true, IfIndex: 12345, PodMAC: mac("44"), NodeMAC: mac("45"), Owner: 1, netns: 12345, flags: device.IntoPeer,
		}}); err != nil {
			t.Fatal(err)
		}
	}
	return addrs
}

// stranger is a way of sending that leaves nobody known as the sender.
type stranger struct {
	name  string
	ns    *netns.Namespace
	index int
	mac   net.HardwareAddr
	via   net.HardwareAddr // of the router, if it is not the same for all
}

// strangers are those of the pod.
func (f *forger) strangers(t *testing.T) []stranger {
	t.Helper()
	deep := testkit.Namespace(t, "deep")
	f.another(t, "eth5")
	f.run(t, strings.ReplaceAll(`
		-n PODB link set eth5 netns DEEP
		-n DEEP link set eth5 up
		-n PODB link add over type veth peer name under
		-n PODB link set over up
		-n PODB link set under up`, "DEEP", deep.Name()))
	device := func(ns *netns.Namespace, name string) stranger {
		d := must(rtnl.In(ns).Device(name))(t)
		return stranger{ns: ns, index: d.Index, mac: d.MAC}
	}
	nested := device(deep, "eth5")
	nested.name = "from a network namespace of its own"
	all := []stranger{nested}
	second := f.another(t, "eth6")
	f.tc(t, "qdisc add dev over clsact")
	const mirror = "filter add dev over egress protocol all u32 match u32 0 0 action mirred egress mirror dev eth6"
	if out, err := f.tryTC(mirror); err != nil {
		t.Fatal(err, out)
	}
	copied := device(f.pods[1], "over")
	copied.name, copied.mac = "as a copy", second.MAC
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
	bridged := device(deep, "eth0")
	bridged.name = "by a bridge"
	return append(all, bridged)
}

// sendAway sends to nobody on the network what tryStranger sends to the victim: that does not make it a packet that comes back.
//
//revive:disable-next-line:argument-limit // t comes on top of the four that say who sends what how
func (f *forger) sendAway(t *testing.T, victim net.PacketConn, from netip.Addr, way stranger) {
	t.Helper()
	frame := slices.Concat(mac("98"), way.mac, f.datagram(from, victim, "away")[12:])
	if err := sendFrame(way.ns, way.index, frame, false); err != nil && !errors.Is(err, unix.ENOBUFS) {
		t.Fatal(err)
	}
}

// tryStranger sends from a pod's address, and behind that from one outside: the victim gets the second alone.
//
//revive:disable-next-line:argument-limit // t comes on top of the four that say who sends what how
func (f *forger) tryStranger(t *testing.T, victim net.PacketConn, from, outside netip.Addr, way stranger) {
	t.Helper()
	f.own = way.mac
	send := func(from netip.Addr, text string) {
		// ENOBUFS: a program on the way has dropped it.
		if err := sendFrame(way.ns, way.index, f.datagram(from, victim, text), false); err != nil && !errors.Is(err, unix.ENOBUFS) {
			t.Fatal(err)
		}
	}
	f.alone(t, victim, func(text string) { send(from, text) }, func(text string) { send(outside, text) })
}

// expectAny returns an error unless a datagram arrives that has the text.
func (f *forger) expectAny(victim net.PacketConn, text string) error {
	buffer := make([]byte, 100)
	_ = victim.SetReadDeadline(time.Now().Add(time.Second))
	n, _, err := victim.ReadFrom(buffer)
	if err == nil && strings.TrimRight(string(buffer[:n]), "\x00") != text {
		err = fmt.Errorf("the victim got %q, want %q", buffer[:n], text)
	}
	return err
}

// TestRouterReturnsToHost has a router on the network of the parent bring back to the host what a pod has sent; also from an
// address that the pod is allowed. The same addresses in a packet that no pod has sent, and others of the pod, do not arrive.
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
			own := [2]netip.Addr{own4, own6}[family]
			victim := listenIn(t, f.network.host, to)
			other := listenIn(t, f.network.host, []string{gateway4, gateway6}[family])
			index, up1 := o.upstream(t)
			fromWire := func(from netip.Addr, to net.PacketConn, text string) {
				frame := slices.Concat(f.reachHost(t), up1, f.datagram(from, to, text)[12:])
				succeed(t, sendFrame(o.ns, index, frame, false))
			}
			before := counts(t, f.d)
			fromWire(own, victim, "forged")
			fromWire([2]netip.Addr{outside4, outside6}[family], victim, "passes")
			f.wants(t, victim, "passes")
			wantForged(t, f.d, before)
			for _, from := range []netip.Addr{own, allowed[family]} {
				testkit.Eventually(t, 10*time.Second, func() error {
					o.sendBy(t, f.datagram(from, victim, "returned"))
					return f.expectAny(victim, "returned")
				})
			}
			fromWire(own, other, "forged")
			fromWire([2]netip.Addr{outside4, outside6}[family], other, "passes")
			f.wants(t, other, "passes")
		}
	})
}

// behindHost are addresses of the host that the pod reaches by the router.
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

// upstream returns the device of the machine outside.
func (o *outsider) upstream(t *testing.T) (int, net.HardwareAddr) {
	t.Helper()
	up1 := must(rtnl.In(o.ns).Device("up1"))(t)
	return up1.Index, up1.MAC
}

// sendBy sends a packet by the router.
func (o *outsider) sendBy(t *testing.T, frame []byte) {
	t.Helper()
	_, up1 := o.upstream(t)
	o.send(t, slices.Concat(up1, frame[6:]), o.honest())
}

// TestParentIsBridge has a pod on a bridge reach the host, whose device is a macvlan on that bridge, as are those of other pods. A
// pod there cannot pose as it.
func TestParentIsBridge(t *testing.T) {
	n := newNetwork(t)
	n.run(t, `
		-n HOST link add br0 type bridge forward_delay 0 stp_state 0
		-n HOST link set br0 up
		-n HOST link add mst-host link br0 type macvlan mode bridge
		-n HOST addr add `+gateway4+`/24 dev mst-host
		-n HOST addr add `+gateway6+`/64 dev mst-host nodad
		-n HOST link set mst-host up
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
			f.own = eth0.MAC
			testkit.Eventually(t, 5*time.Second, func() error {
				if err := sendFrame(n.pods[i], eth0.Index, f.datagram(netip.MustParseAddr(from), victim, "honest"), false); err != nil {
					return err
				}
				return f.expectAny(victim, "honest")
			})
		}
		for _, way := range ways {
			t.Run(gateway+" "+way.name, func(t *testing.T) {
				f.tryStranger(t, victim, [2]netip.Addr{other4, other6}[family], [2]netip.Addr{outside4, outside6}[family], way)
			})
		}
	}
}
