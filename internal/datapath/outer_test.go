// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// Addresses of a machine on the network of the parent, and of the host there.
var (
	beyond  = [2]netip.Addr{netip.MustParseAddr("192.168.77.77"), netip.MustParseAddr("fd00:77::77")}
	hostOut = [2]netip.Addr{netip.MustParseAddr("192.168.77.1"), netip.MustParseAddr("fd00:77::1")}
)

// TestForgingOutside has root in a pod send to the network of the parent, from foreign addresses, and announce another
// pod's, in all its ways past its program too. None of these packets leaves the parent, and all do with the guard off.
func TestForgingOutside(t *testing.T) {
	onLinks(t, "macvlan, ipvlan-l2, ipvlan-l3, ipvlan-l3s", func(t *testing.T, m linkMode) {
		o := newForger(t, m).addOutside(t)
		t.Run("endpoints", o.forgeAll)
		o.loseEndpoints(t)
		t.Run("guard alone", o.forgeAll)
	})
}

func (o *outsider) forgeAll(t *testing.T) {
	ways := o.ways(t)
	for _, guarded := range []bool{true, false} {
		o.guard(t, guarded)
		for family := range 2 {
			for _, way := range ways {
				t.Run(fmt.Sprintf("guard %t, %s, %s", guarded, way.name, []string{"IPv4", "IPv6"}[family]), func(t *testing.T) {
					o.forge(t, family, way, guarded)
				})
			}
		}
	}
}

// outsider is a machine on the network of the parent, beside a pod that forges packets.
type outsider struct {
	*forger
	alone  bool // the pods are not endpoints
	ns     *netns.Namespace
	socket int // of packets that arrive there
}

// addOutside puts the other end of the parent's link into its own namespace.
func (f *forger) addOutside(t *testing.T) *outsider {
	t.Helper()
	o := &outsider{forger: f, ns: testkit.Namespace(t, "outside")}
	f.run(t, strings.NewReplacer("OUT", o.ns.Name()).Replace(`
		-n HOST link set up1 netns OUT
		up OUT up1 `+beyond[0].String()+`/24 `+beyond[1].String()+`/64
		-n OUT route add 192.168.10.0/24 dev up1
		-n OUT route add fd00:10::/64 dev up1
		-n HOST addr add `+hostOut[0].String()+`/24 dev up0
		-n HOST addr add `+hostOut[1].String()+`/64 dev up0 nodad`))
	up1 := must(rtnl.In(o.ns).Device("up1"))(t)
	f.next = up1.MAC
	o.socket = tap(t, o.ns, "up1", unix.ETH_P_ALL)
	return o
}

// loseEndpoints leaves the pods the source guard alone.
func (o *outsider) loseEndpoints(t *testing.T) {
	t.Helper()
	for i := range o.pods {
		succeed(t, o.d.Endpoints().DeleteDevice(t.Context(), o.attachment(i)))
	}
	o.alone = true
}

func (o *outsider) guard(t *testing.T, on bool) {
	t.Helper()
	if !o.alone {
		o.forger.guard(t, on)
		return
	}
	for i := range o.pods {
		spec := o.attachment(i)
		spec.Unguarded = !on
		must(o.d.Guards().Put(t.Context(), spec))(t)
	}
}

// ways are the forger's ways, via AF_XDP, and via a VLAN on another device.
func (o *outsider) ways(t *testing.T) []sender {
	t.Helper()
	xdp, past, second := o.by("by AF_XDP", o.device.Index), o.by("tagged, past the queue", o.device.Index),
		o.another(t, "eth1")
	beside := o.by("tagged, by a second device", second.Index)
	xdp.xdp, past.skip, past.tagged, beside.tagged = true, true, true, true
	ways := append(o.forger.ways(t), xdp, past, beside)
	if o.device.Kind != "macvlan" { // the kernel lacks VLANs on ipvlans
		return ways
	}
	vlan, err := rtnl.In(o.pods[1]).Device("eth1.5")
	if err != nil {
		add := exec.Command("ip", strings.Fields("-n "+o.pods[1].Name()+" link add link eth1 name eth1.5 type vlan id 5")...)
		if out, err := add.CombinedOutput(); strings.Contains(string(out), "Unknown device type") {
			t.Log("the kernel has no VLANs; that of the guest has")
			return ways
		} else if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		o.run(t, "-n PODB link set eth1.5 up")
		vlan = must(rtnl.In(o.pods[1]).Device("eth1.5"))(t)
	}
	return append(ways, o.by("by a VLAN on a second device", vlan.Index))
}

// forge sends forged datagrams, and an honest one behind each: that alone arrives. With the guard off, both do. Then it
// announces a third pod's address.
func (o *outsider) forge(t *testing.T, family int, by sender, guarded bool) {
	t.Helper()
	to := netip.AddrPortFrom(beyond[family], 4444)
	honest := func(text string) { o.honest().say(t, owns[family], to, text) }
	testkit.Eventually(t, 10*time.Second, func() error { // neighbours must be resolved
		honest("ready")
		return o.arrives("ready", "")
	})
	frames := map[string][]byte{}
	for _, from := range []netip.Addr{thirds[family], outsides[family], hostOut[family]} {
		frames["from "+from.String()] = by.datagram(from, to, "forged")
	}
	if !by.tagged && (o.mode == "macvlan" || o.mode == "ipvlan-l2") { // the others lack neighbours
		frames["announcing"] = o.announcement(thirds[family])
	}
	for name, frame := range frames {
		text := "forged"
		if name == "announcing" {
			text = string(frame[14:])
		}
		before := counts(t, o.d)
		by.send(t, frame)
		if !guarded {
			err := o.arrives(text, "")
			testkit.Check(t, err == nil || o.kernelDrops(by), "%s: %v", name, err)
			continue
		}
		honest("honest")
		noError(t, o.arrives("honest", text), name)
		counted := delta(t, o.d, before)
		n := counted["drop_source"] + counted["drop_ethertype"] + counted["drop_neighbour"]
		testkit.Check(t, n > 0 || o.kernelDrops(by), "%s: counted %v", name, counted) // eth1's discovery counts too
	}
}

// kernelDrops reports whether an ipvlan takes no such packets.
func (o *outsider) kernelDrops(by sender) bool {
	return o.device.Kind == "ipvlan" && (by.xdp || by.tagged)
}

// arrives returns an error unless a frame with the text arrives, and before it none with the other.
func (o *outsider) arrives(text, other string) error { return arrivesAt(o.socket, text, other) }

func arrivesAt(socket int, text, other string) error {
	frame := make([]byte, 2000)
	for deadline := time.Now().Add(time.Second); ; {
		wait := max(time.Until(deadline), time.Millisecond)
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(socket), Events: unix.POLLIN}}, int(wait.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if err != nil || ready == 0 {
			return fmt.Errorf("no %q arrives: %v", text, err)
		}
		n, _, err := unix.Recvfrom(socket, frame, 0)
		if err != nil && err != unix.ENETDOWN {
			return err
		}
		switch got := frame[:max(n, 0)]; {
		case other != "" && bytes.Contains(got, []byte(other)):
			return fmt.Errorf("%q arrives: %x", other, got)
		case bytes.Contains(got, []byte(text)):
			return nil
		}
	}
}

// TestForgingNested has root in a pod send another pod's address from a network namespace that the pod has made: the
// socket does not identify the sender. Nothing of that leaves the parent or enters a pod, whatever follows the
// packet's source and whatever the kernel takes it for. A pod whose guard is off gets it.
func TestForgingNested(t *testing.T) {
	onLinks(t, "macvlan, ipvlan-l2, ipvlan-l3, ipvlan-l3s", func(t *testing.T, m linkMode) {
		o := newForger(t, m).addOutside(t)
		from := o.nest(t)
		victim := tap(t, o.pods[0], "eth0", unix.ETH_P_IPV6)
		for _, c := range nestedCases() {
			if (c.tags > 0 && o.device.Kind == "ipvlan") || (c.kernel != 0 && strings.HasPrefix(m.name, "ipvlan-l3")) {
				continue // it takes no such packets
			}
			t.Run(c.name, func(t *testing.T) {
				o.guard(t, true)
				o.forgeNested(t, from, o.socket, c)
				if c.toPod {
					o.forgeNested(t, from, victim, c)
				}
			})
		}
	})
}

// nest makes a second device of the pod on the same parent, and moves it to its own namespace.
func (f *forger) nest(t *testing.T) sender {
	t.Helper()
	f.another(t, "deep")
	ns := testkit.Namespace(t, "deep")
	f.run(t, "-n PODB link set deep netns "+ns.Name()+"\nup "+ns.Name()+" deep")
	return senderBy(t, "from a network namespace of its own", ns, "deep")
}

// senderBy is a sender that no socket identifies.
func senderBy(t *testing.T, name string, ns *netns.Namespace, device string) sender {
	t.Helper()
	d := must(rtnl.In(ns).Device(device))(t)
	return sender{name: name, ns: ns, index: d.Index, mac: d.MAC, stranger: true}
}

// nestedCase is a packet from another pod's address.
type nestedCase struct {
	name   string
	family int
	change func(*packet)
	kernel uint16 // the kernel's protocol, if not the frame's
	tags   int    // of VLANs
	toPod  bool   // a pod is to be kept from it too
}

func nestedCases() []nestedCase {
	behind := func(e extension) func(*packet) { return func(p *packet) { p.extensions = []extension{e} } }
	return []nestedCase{
		{name: "IPv4"},
		{name: "IPv4 that the kernel takes for another protocol", kernel: 0x1234},
		{name: "IPv4, GRE", change: func(p *packet) { p.proto = protoGRE }},
		{name: "IPv4 in a VLAN", tags: 1},
		{name: "IPv4 in a VLAN in a VLAN", tags: 2},
		{name: "IPv6", family: 1, toPod: true},
		{name: "IPv6 that the kernel takes for another protocol", family: 1, kernel: 0x1234},
		{name: "ICMPv6", family: 1, toPod: true, change: func(p *packet) { p.proto, p.icmpType = protoICMPv6, 128 }},
		{name: "IPv6, GRE", family: 1, toPod: true, change: func(p *packet) { p.proto = protoGRE }},
		{name: "destination options", family: 1, toPod: true, change: behind(extension{kind: destinationOptions})},
		{name: "a routing header", family: 1, toPod: true, change: behind(extension{routing, 2, 1})},
		{name: "a routing header that is cut off", family: 1, toPod: true, change: func(p *packet) {
			p.proto, p.payload = routing, "forged"
		}},
		{name: "IPv6 in a VLAN", family: 1, tags: 1},
	}
}

// forgeNested sends a packet to the machine or the victim, and behind it one from an address outside, which passes.
// With the guard off, the first arrives.
func (o *outsider) forgeNested(t *testing.T, by sender, at int, c nestedCase) {
	t.Helper()
	dst := beyond[c.family]
	if by.next = o.next; at != o.socket {
		pod := must(rtnl.In(o.pods[0]).Device("eth0"))(t)
		dst, by.next = netip.MustParseAddr(podA6), pod.MAC
	}
	passes := packet{src: netip.AddrPortFrom(outsides[c.family], 4000), dst: netip.AddrPortFrom(dst, 4444),
		proto: protoUDP, payload: "passes"}
	forged := passes
	forged.src, forged.payload = netip.AddrPortFrom(thirds[c.family], 4000), "forged"
	if c.change != nil {
		c.change(&forged)
	}
	frame := by.frame(forged)
	tag := []byte{0x81, 0x00, 0, 5}
	frame = slices.Concat(frame[:12], slices.Repeat(tag, c.tags), frame[12:])
	forge := by
	forge.kernel = c.kernel
	before := counts(t, o.d)
	forge.send(t, frame)
	by.send(t, by.frame(passes))
	noError(t, arrivesAt(at, "passes", "forged"))
	equal(t, delta(t, o.d, before)["drop_source"], 1, "drop_source")
	if at == o.socket { // the guard of a pod that sends is not asked
		return
	}
	o.guard(t, false)
	defer o.guard(t, true)
	testkit.Eventually(t, 5*time.Second, func() error {
		forge.send(t, frame)
		return arrivesAt(at, "forged", "")
	})
}

// tap opens a packet socket on a device of a namespace, for packets that have passed the programs there.
func tap(t *testing.T, ns *netns.Namespace, device string, proto uint16) int {
	t.Helper()
	on := must(rtnl.In(ns).Device(device))(t)
	var fd int
	proto = proto<<8 | proto>>8
	succeed(t, ns.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(proto)); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: on.Index})
	}), "%s", device)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}
