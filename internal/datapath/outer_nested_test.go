// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
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

// TestForgingNested has root in a pod send another pod's address from a network namespace that the pod has made: nobody knows the
// sender by its socket. Nothing of that leaves the parent or enters a pod, whatever the packet has behind its source and whatever
// the kernel takes it for. A pod whose guard is off gets it.
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
				o.forgeNested(t, from, o.socket, c.frame(o.next, from.MAC, beyond), c)
				if c.toPod {
					o.forgeNested(t, from, victim, c.frame(o.pod(t), from.MAC, [2]netip.Addr{1: netip.MustParseAddr(podA6)}), c)
				}
			})
		}
	})
}

// nested is a device in a namespace that a pod has made.
type nested struct {
	rtnl.Device
	ns *netns.Namespace
}

// nest makes a second device of the pod on the same parent, and moves it to a namespace of its own.
func (o *outsider) nest(t *testing.T) nested {
	t.Helper()
	o.another(t, "deep")
	n := nested{ns: testkit.Namespace(t, "deep")}
	o.run(t, strings.ReplaceAll("-n PODB link set deep netns DEEP\n-n DEEP link set deep up", "DEEP", n.ns.Name()))
	n.Device = must(rtnl.In(n.ns).Device("deep"))(t)
	return n
}

// pod returns the MAC address of the victim.
func (o *outsider) pod(t *testing.T) []byte {
	t.Helper()
	device := must(rtnl.In(o.pods[0]).Device("eth0"))(t)
	return device.MAC
}

// nestedCase is a packet from another pod's address.
type nestedCase struct {
	name   string
	family int
	change func(*packet)
	kernel uint16 // what the kernel takes it for, if not what the frame says
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
		{name: "a routing header that is cut off", family: 1, toPod: true, change: func(p *packet) { p.proto, p.payload = routing, "forged" }},
		{name: "IPv6 in a VLAN", family: 1, tags: 1},
	}
}

// frame returns a frame of the case.
func (c nestedCase) frame(to, from []byte, dst [2]netip.Addr) []byte {
	third := [2]string{"192.168.10.12", "fd00:10::c"}[c.family]
	p := packet{src: netip.AddrPortFrom(netip.MustParseAddr(third), 4000), dst: netip.AddrPortFrom(dst[c.family], 4444), proto: protoUDP, payload: "forged"}
	if c.change != nil {
		c.change(&p)
	}
	frame := slices.Concat(to, from)
	for range c.tags {
		frame = append(frame, 0x81, 0x00, 0, 5)
	}
	return slices.Concat(frame, [][]byte{{0x08, 0x00}, {0x86, 0xdd}}[c.family], p.ip())
}

// forgeNested sends a frame, and behind it one from an address outside, which passes. With the guard off, the first arrives.
//
//revive:disable-next-line:argument-limit // t comes on top of the four that say who sends what where
func (o *outsider) forgeNested(t *testing.T, from nested, at int, frame []byte, c nestedCase) {
	t.Helper()
	kernel := c.kernel
	if kernel == 0 {
		kernel = binary.BigEndian.Uint16(frame[12:])
	}
	passes := c
	passes.tags, passes.change = 0, func(p *packet) {
		p.src, p.payload = netip.AddrPortFrom([2]netip.Addr{outside4, outside6}[c.family], 4000), "passes"
	}
	var dst [2]netip.Addr
	if at == o.socket {
		dst = beyond
	} else {
		dst[1] = netip.MustParseAddr(podA6)
	}
	other := passes.frame(frame[:6], frame[6:12], dst)
	send := func(frame []byte, proto uint16) {
		// ENOBUFS: a program on the parent has dropped it.
		if err := sendAs(from.ns, from.Index, frame, proto); err != nil && !errors.Is(err, unix.ENOBUFS) {
			t.Fatal(err)
		}
	}
	before := counts(t, o.d)
	send(frame, kernel)
	send(other, binary.BigEndian.Uint16(other[12:]))
	if err := arrivesAt(at, "passes", "forged"); err != nil {
		t.Error(err)
	}
	if d := delta(t, o.d, before)["drop_source"]; d != 1 {
		t.Errorf("drop_source: %d", d)
	}
	if at == o.socket { // the guard of a pod that sends is not asked
		return
	}
	o.guard(t, false)
	defer o.guard(t, true)
	testkit.Eventually(t, 5*time.Second, func() error {
		send(frame, kernel)
		return arrivesAt(at, "forged", "")
	})
}

// sendAs sends a frame by a packet socket in a namespace that has the kernel take it for a protocol.
func sendAs(ns *netns.Namespace, index int, frame []byte, proto uint16) error {
	return ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: index, Protocol: proto<<8 | proto>>8})
	})
}

// tap opens a packet socket on a device of a namespace, for what has passed the programs there.
func tap(t *testing.T, ns *netns.Namespace, device string, proto uint16) int {
	t.Helper()
	on := must(rtnl.In(ns).Device(device))(t)
	var fd int
	proto = proto<<8 | proto>>8
	if err := ns.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(proto)); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: on.Index})
	}); err != nil {
		t.Fatal(fmt.Errorf("%s: %w", device, err))
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}
