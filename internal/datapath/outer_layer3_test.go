// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
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
			links := must(d.objects.Links())(t)
			return slices.ContainsFunc(links, func(k objects.Link) bool {
				return k.Hook.Point == objects.AttachParent && k.IfIndex == 1
			})
		}
		if want := strings.HasPrefix(m.name, "ipvlan"); at() != want {
			t.Errorf("at the loopback device: %t, want %t", at(), want)
		}
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
	deep := testkit.Namespace(t, "deep")
	f.another(t, "eth5")
	f.run(t, strings.ReplaceAll(`
		-n PODB link set eth5 netns DEEP
		-n DEEP link set eth5 up
		-n PODB link add over type veth peer name under netns DEEP
		-n PODB link set over up
		-n DEEP link set under up
		-n DEEP link set lo up
		-n DEEP -6 route add fd00:10::/64 dev eth5
		-n DEEP -6 neigh add `+gateway6+` lladdr `+hostMAC.String()+` dev eth5 nud permanent
		-n DEEP -6 neigh add `+podA6+` lladdr `+hostMAC.String()+` dev eth5 nud permanent`, "DEEP", deep.Name()))
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
