// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestForging has root in one pod send from foreign addresses, also past its programs, and announce them: to another
// pod, to the host's own device on the same parent, and in the node's name. None of these packets arrives, and all do
// with the guard off. A policy holds as well.
func TestForging(t *testing.T) {
	onLinks(t, "veth, bridge, macvlan, ipvlan-l2, ipvlan-l3, ipvlan-l3s, netkit, netkit-l2, ovs-veth, tap",
		func(t *testing.T, m linkMode) {
			f := newForger(t, m)
			t.Run("to a pod", f.toPod)
			if m.name == "bridge" || m.name == "macvlan" {
				t.Run("announcing", f.spoofAll)
			}
			if !m.onParent() {
				return
			}
			f.nobody = f.makeStrangers(t)
			t.Run("rewriting", f.rewrite)
			t.Run("under a policy", f.underPolicy)
			if m.layer2() {
				t.Run("to the host", f.toHost)
			} else {
				t.Run("in layer 3", f.inLayer3)
			}
			t.Run("as the node", f.asNode)
			if m.layer2() { // others' packets look like the host's own to its routing
				t.Run("as the node, by the host", f.asNodeByHost)
			}
		})
}

// onParent is whether pods have devices on a parent; layer2, whether the parent gets their packets as they are.
func (m linkMode) onParent() bool { return m.layer2() || strings.HasPrefix(m.name, "ipvlan") }
func (m linkMode) layer2() bool   { return m.name == "macvlan" || m.name == "ipvlan-l2" }

// toPod sends to the other pod, from addresses of a third one and outside.
func (f *forger) toPod(t *testing.T) {
	for family, addr := range []string{podA4, podA6} {
		senders := f.ways(t)
		if f.segment != "" {
			senders = senders[:1] // docs/security.md: past the program is open
		}
		f.tryOff(t, listenIn(t, f.pods[0], addr), []netip.Addr{thirds[family], outsides[family]}, senders)
	}
}

// toHost sends to the host's own device, from addresses of other pods and one outside, and from network namespaces
// and devices that hide the sender. The host receives the same from an address outside.
func (f *forger) toHost(t *testing.T) {
	pod := f.next
	f.next = f.reachHost(t)
	defer func() { f.next = pod }()
	routed, ways := f.addRouted(t), f.strangers(t)
	for family, gateway := range []string{gateway4, gateway6} {
		victim, pods := listenIn(t, f.network.host, gateway), []netip.Addr{thirds[family], routed[family]}
		f.tryOff(t, victim, []netip.Addr{thirds[family], outsides[family]}, f.ways(t))
		for _, away := range ways {
			away.next = mac("98") // to an unused address: it does not count as a returning packet
			for _, from := range pods {
				away.say(t, from, addrOf(victim), "away")
			}
		}
		f.try(t, victim, pods, ways)
	}
}

// inLayer3 tests a pod whose packets the host routes. It sends to a pod of another link mode and to the host, from
// other pods' addresses, past its program and as an unknown sender. To the pod it also sends from the node's address
// and from one outside, past its program.
func (f *forger) inLayer3(t *testing.T) {
	routed, veth := f.addRouted(t), f.addVeth(t, nil)
	f.onUplink(t)
	ways, strangers := f.ways(t), f.strangers(t)
	for family, to := range hostOut {
		pods := []netip.Addr{thirds[family], routed[family]}
		host := listenIn(t, f.network.host, to.String())
		f.try(t, host, pods, append(slices.Clip(ways), strangers...))
		if to.Is6() { // the kernel looks for routes of IPv4 on the parent alone
			victim := listenIn(t, veth, routedPod[family].String())
			f.try(t, victim, append(slices.Clip(pods), to, outside6), ways)
			f.try(t, victim, pods, strangers)
		}
	}
}

// onUplink gives the host addresses on the network of the parent.
func (f *forger) onUplink(t *testing.T) {
	t.Helper()
	f.run(t, "-n HOST addr replace "+hostOut[0].String()+"/24 dev up0\n-n HOST addr replace "+hostOut[1].String()+
		"/64 dev up0 nodad")
}

// asNode poses as the node, which policies let reach its pods, in all ways that leave no socket to identify it. The
// node itself reaches the pod, also in the name of a machine for which it translates.
func (f *forger) asNode(t *testing.T) {
	f.labelled(t, f.d)
	applyPolicies(t, f.d, onlyOutsideToA)
	strangers := f.strangers(t)
	for family, addr := range []string{podA4, podA6} {
		victim, node := listenIn(t, f.pods[0], addr), netip.MustParseAddr([]string{gateway4, gateway6}[family])
		f.try(t, victim, []netip.Addr{node}, strangers)
		before := counts(t, f.d)
		noError(t, sendUDP(f.network.host, node.String(), victim), "from the node at %s", node)
		f.translated(t, family, victim)
		equal(t, delta(t, f.d, before)["drop_source"], 0, "drop_source")
		noError(t, sendUDP(f.network.host, node.String(), listenIn(t, f.network.host, node.String())), "the host to itself")
	}
}

// asNodeByHost poses as the node to pods that the host routes to: one on the same parent, and one behind a veth. IPv6
// routes packets that come with an address of the host.
func (f *forger) asNodeByHost(t *testing.T) {
	f.next = f.reachHost(t)
	veth := f.addVeth(t, map[string]string{"app": "a"})
	setForwarding(t, f.network.host, "1")
	strangers := f.strangers(t)
	for family, addr := range []string{podA4, podA6} {
		node := []netip.Addr{netip.MustParseAddr([]string{gateway4, gateway6}[family])}
		for ns, at := range map[*netns.Namespace]string{f.pods[0]: addr, veth: routedPod[family].String()} {
			f.try(t, listenIn(t, ns, at), node, strangers)
		}
	}
}

// TestModeOfIpvlan has root in a pod of ipvlan-l2 change the mode to layer 3. The pod then sends as the node and as
// another pod, as an unknown sender, to a pod behind a veth and to the host.
func TestModeOfIpvlan(t *testing.T) {
	onLinks(t, "ipvlan-l2", func(t *testing.T, m linkMode) {
		f := newForger(t, m)
		f.labelled(t, f.d)
		veth := f.addVeth(t, map[string]string{"app": "a"})
		applyPolicies(t, f.d, onlyOutsideToA)
		f.onUplink(t)
		setForwarding(t, f.network.host, "1")
		strangers := f.strangers(t)
		f.run(t, "-n PODB link set eth0 type ipvlan mode l3")
		for at, forged := range map[net.PacketConn][]string{
			listenIn(t, veth, routedPod[1].String()):         {podA6, gateway6},
			listenIn(t, f.network.host, hostOut[1].String()): {podA6},
		} {
			for _, from := range forged {
				for _, way := range strangers {
					t.Run(fmt.Sprintf("to %s from %s, %s", at.LocalAddr(), from, way.name), func(t *testing.T) {
						_ = way.raw(way.datagram(netip.MustParseAddr(from), addrOf(at), "forged"))
						_ = at.SetReadDeadline(time.Now().Add(time.Second))
						_, got, err := at.ReadFrom(make([]byte, 100))
						failIf(t, err == nil, "a packet from %s arrived", got)
					})
				}
			}
		}
	})
}

// underPolicy sends to another pod, whose policy allows no peer, past the programs of its own device: nothing
// arrives. Without the policy all arrives. The source guard, which would drop most of it first, is off.
func (f *forger) underPolicy(t *testing.T) {
	f.guard(t, false)
	defer f.guard(t, true)
	defer applyPolicies(t, f.d)
	for _, family := range [][2]string{{podA4, podB4}, {podA6, podB6}} {
		victim, own := listenIn(t, f.pods[0], family[0]), netip.MustParseAddr(family[1])
		xdp := f.by("by AF_XDP", f.device.Index)
		xdp.xdp = true
		for _, way := range append(f.ways(t), xdp) {
			t.Run(family[0]+" "+way.name, func(t *testing.T) {
				applyPolicies(t, f.d)
				testkit.Eventually(t, 20*time.Second, func() error {
					f.honest().say(t, own, addrOf(victim), "open")
					return f.expect(victim, "open")
				})
				if way.xdp && f.device.Kind == "ipvlan" {
					return // the kernel drops it: AF_XDP leaves the protocol unset, and ipvlan needs it
				}
				applyPolicies(t, f.d, denyAll)
				before := counts(t, f.d)
				way.send(t, f.honest().datagram(own, addrOf(victim), "denied"))
				awaitCount(t, f.d, before, "drop_policy_ingress")
				applyPolicies(t, f.d)
				way.send(t, f.honest().datagram(own, addrOf(victim), "allowed"))
				noError(t, f.expect(victim, "allowed"))
			})
		}
	}
}

// announcement returns a frame that announces an address as the pod's to the victim.
func (f *forger) announcement(third netip.Addr) []byte {
	if third.Is4() {
		frame := arp(2, "0c", "0c", third)
		return slices.Concat(f.next, f.own, bytes.ReplaceAll(frame[12:], mac("0c"), f.own))
	}
	p := discovery(136, netip.MustParseAddr(podB6), third, "2 0c")
	p.dst = netip.MustParseAddrPort("[" + podA6 + "]:0")
	frame := slices.Concat(f.next, f.own, bytes.ReplaceAll(p.frame()[12:], mac("0c"), f.own))
	ip := frame[14:]
	const overrides = 0x20
	ip[7], ip[40+4], ip[40+2], ip[40+3] = 255, overrides, 0, 0
	pseudo := slices.Concat(ip[8:40], []byte{0, 0, 0, byte(len(ip) - 40), 0, 0, 0, protoICMPv6}, ip[40:])
	binary.BigEndian.PutUint16(ip[42:], ^sum(pseudo))
	return frame
}

func (f *forger) spoof(t *testing.T, victim net.PacketConn, third netip.Addr, by sender) {
	t.Helper()
	frame := f.announcement(third)
	const known = "02:00:00:00:00:77"
	neighbour := func() string { return testkit.Command(t, f.pods[0], "ip neigh show "+third.String()+" dev eth0") }
	know := func() {
		family := map[bool]string{true: "ipv6", false: "ipv4"}[third.Is6()]
		succeed(t, rtnl.In(f.pods[0]).SetSysctl("net/"+family+"/neigh/eth0/locktime", "0"))
		f.run(t, "-n PODA neigh replace "+third.String()+" lladdr "+known+" dev eth0 nud reachable")
	}
	f.guard(t, true)
	know()
	before := counts(t, f.d)
	by.send(t, frame)
	f.honest().say(t, own4, addrOf(victim), "honest")
	noError(t, f.expect(victim, "honest"))
	counted := delta(t, f.d, before)
	if got := neighbour(); !strings.Contains(got, known) || counted["drop_neighbour"]+counted["drop_source"] != 1 {
		t.Errorf("the victim knows %q, counted %v", got, counted)
	}
	f.guard(t, false)
	defer f.guard(t, true)
	know()
	testkit.Eventually(t, 5*time.Second, func() error {
		by.send(t, frame)
		if got := neighbour(); !strings.Contains(got, f.own.String()) {
			return fmt.Errorf("without the guard the victim knows %q, want %s", got, f.own)
		}
		return nil
	})
}

// rewrite changes the source of a packet behind the programs of its device, by a filter.
func (f *forger) rewrite(t *testing.T) {
	victim := listenIn(t, f.pods[0], podA4)
	f.tc(t, "qdisc add dev eth0 clsact")
	defer f.tc(t, "qdisc delete dev eth0 clsact")
	const filter = "filter add dev eth0 egress protocol ip u32 match ip sport 4000 0xffff match ip dport 4444 0xffff "
	if out, err := f.tryTC(filter + "action pedit ex munge ip src set 192.168.10.12"); strings.Contains(out,
		"action module") {
		testkit.RequireMode(t, fmt.Errorf("the kernel has no module act_pedit: %w", errors.ErrUnsupported))
	} else if err != nil {
		t.Fatal(err, out)
	}
	before := counts(t, f.d)
	f.honest().say(t, own4, addrOf(victim), "forged")
	awaitCount(t, f.d, before, "drop_source")
	f.tc(t, "filter del dev eth0 egress")
	f.honest().say(t, own4, addrOf(victim), "honest")
	noError(t, f.expect(victim, "honest"))
}

// spoofAll announces another pod's address by ARP and neighbour discovery. The victim's table of neighbours stays as it
// is; with the guard off it changes.
func (f *forger) spoofAll(t *testing.T) {
	victim := listenIn(t, f.pods[0], podA4)
	for _, third := range thirds {
		for _, by := range f.ways(t) {
			t.Run(third.String()+" "+by.name, func(t *testing.T) { f.spoof(t, victim, third, by) })
		}
	}
}
