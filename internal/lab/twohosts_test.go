// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func twoHosts() map[string]lab.Options {
	all := map[string]lab.Options{}
	add := func(name string, o lab.Options) {
		o.Topology = lab.TopologyTwoHosts
		all[name] = o
	}
	add("host", lab.Options{Link: lab.LinkHost})
	add("host-bridge", lab.Options{Link: lab.LinkHostBridge})
	for _, mode := range podlink.Modes() {
		add(mode.Name(), lab.Options{Link: mode.Name()})
	}
	add("bridge/nat", lab.Options{Link: "bridge", NAT: true})
	add("veth/nat", lab.Options{Link: "veth", NAT: true})
	add("veth/ebpf", lab.Options{Link: "veth", Datapath: lab.DatapathEBPF})
	add("veth/vxlan", lab.Options{Link: "veth", Overlay: lab.OverlayVXLAN})
	add("veth/vxlan/ebpf", lab.Options{Link: "veth", Overlay: lab.OverlayVXLAN, Datapath: lab.DatapathEBPF})
	for _, link := range []string{"bridge", "tap", "ovs-veth", "ovs-internal"} {
		add(link+"/vxlan", lab.Options{Link: link, Overlay: lab.OverlayVXLAN})
	}
	for _, overlay := range []string{lab.OverlayBridgedVeth, lab.OverlayBridgedInternal} {
		add("bridge/"+overlay, lab.Options{Link: "bridge", Overlay: overlay})
	}
	for name, o := range map[string]lab.Options{ // the other host's side is as above
		"host": {Link: lab.LinkHost}, "veth": {Link: "veth"}, "veth/ebpf": {Link: "veth", Datapath: lab.DatapathEBPF},
		"veth/nat": {Link: "veth", NAT: true}, "bridge": {Link: "bridge"}, "bridge/nat": {Link: "bridge", NAT: true},
		"ipvlan-l3": {Link: "ipvlan-l3"}, "ovs-veth": {Link: "ovs-veth"},
	} {
		o.Topology = lab.TopologyPodToHost
		all["pod-to-host/"+name] = o
	}
	return all
}

// TestTwoHosts sends real traffic between two hosts in each way, and proves that
// it crossed the wire in the form that it should have there.
func TestTwoHosts(t *testing.T) {
	s := store(t)
	for name, o := range twoHosts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireLink(t, o.Link)
			o := options(o)
			for _, again := range []bool{false, true} { // which shows that the first has left nothing in the way
				if again && slowToBuild(o) {
					break
				}
				t.Run("lab", func(t *testing.T) { testWire(t, up(t, s, o), again) })
				left := leftoversOf(t, o.Name, s.Dir)
				testkit.Check(t, len(left) == 0, "left behind: %q", left)
			}
		})
	}
}

// slowToBuild reports whether a lab has an Open vSwitch for each host, except for one such lab, which represents all.
func slowToBuild(o lab.Options) bool {
	switched := strings.HasPrefix(o.Link, "ovs-") || strings.HasPrefix(o.Overlay, "vxlan-ovs-")
	return switched && (o.Link != "ovs-veth" || o.Overlay != lab.OverlayVXLAN)
}

// requireLink skips the test if this kernel lacks the link.
func requireLink(t *testing.T, link string) {
	t.Helper()
	if mode, err := podlink.Lookup(link); err == nil {
		testkit.RequireMode(t, mode.Probe())
	}
}

// wireLegs returns the paths across the wire with the address that each server sees.
func wireLegs(o lab.Options, family int) []leg {
	at := func(place string) netip.Addr {
		addrs := lab.Addresses(o, place)
		if len(addrs) == 0 {
			return netip.Addr{}
		}
		return addrs[family]
	}
	var legs []leg
	for _, from := range []string{lab.HostB, lab.PodB, lab.HostA, lab.PodA} {
		for _, to := range []string{lab.HostA, lab.PodA, lab.HostB, lab.PodB} {
			sameHost := from[len(from)-1] == to[len(to)-1]
			hidden := o.NAT && (to == lab.PodA || to == lab.PodB) // without a route there is no way
			if sameHost || hidden || !at(from).IsValid() || !at(to).IsValid() {
				continue
			}
			target := netip.AddrPortFrom(at(to), 0)
			legs = append(legs, leg{from + " to " + to, from, to, target, target, seenAs(o, from, to, at)})
		}
	}
	return legs
}

// seenAs is the address that a server sees a client at; any if invalid.
func seenAs(o lab.Options, from, to string, at func(place string) netip.Addr) netip.Addr {
	fromPod := from == lab.PodA || from == lab.PodB
	toPod := to == lab.PodA || to == lab.PodB
	switch {
	case o.NAT && from == lab.PodB:
		return at(lab.HostB)
	case o.NAT && from == lab.PodA:
		return at(lab.HostA)
	case !fromPod && toPod && o.Overlay != "" && o.Overlay != lab.OverlayNone:
		return netip.Addr{} // the host's address on the segment
	default:
		return at(from)
	}
}

// testWire tests all legs of a lab, one after the other; again only the longest
// one. Clients of suites are on host-b's side, so the way back is tested less.
func testWire(t *testing.T, l *lab.Lab, again bool) {
	for family, name := range []string{"IPv4", "IPv6"} {
		legs := wireLegs(l.Options, family)
		forth := slices.DeleteFunc(slices.Clone(legs), leg.back)
		if again {
			legs = forth[len(forth)-1:]
		}
		for _, leg := range legs {
			t.Run(leg.name+"/"+name, func(t *testing.T) { testCrossing(t, l, leg, !leg.back() && !again) })
		}
	}
}

func (l leg) back() bool { return l.from == lab.HostA || l.from == lab.PodA }

// crossing returns payload sizes: small ones, or also full packets, batches of segments and fragments.
func crossing(o lab.Options, v6, all bool) map[string][]int {
	headers := 20 + 8
	if v6 {
		headers = 40 + 8
	}
	if o.Overlay != "" {
		headers += podlink.VXLANOverhead
	}
	if !all {
		return map[string][]int{"udp": {podlink.DefaultMTU - headers}, "tcp": {1 << 14}}
	}
	return map[string][]int{"tcp": {1, 1 << 18}, "udp": {1, podlink.DefaultMTU - headers, 8000}}
}

func testCrossing(t *testing.T, l *lab.Lab, leg leg, all bool) {
	capture := startCapture(t, place(t, l, lab.HostA))
	sent := 0
	for network, payloads := range crossing(l.Options, leg.target.Addr().Is6(), all) {
		server := testkit.Echo(t, place(t, l, leg.to), network, leg.listen.String()).String()
		for _, size := range payloads {
			seen, err := testkit.RoundTrip(t, place(t, l, leg.from), network, server, make([]byte, size))
			if err != nil {
				t.Errorf("%s, %d bytes: %v", network, size, err)
				continue
			}
			testkit.Check(t, !leg.source.IsValid() || seen.Addr() == leg.source,
				"%s: the server sees %s instead of %s", network, seen, leg.source)
			sent += size
		}
	}
	seen := capture.seen(leg.source, leg.target.Addr())
	testkit.Check(t, seen.bytes >= 2*sent, "%d bytes crossed the wire, less than %d both ways", seen.bytes, sent)
	// A pod and the other host's own address talk outside the tunnel, in one direction at least.
	if strings.HasPrefix(leg.from, "pod") && strings.HasPrefix(leg.to, "pod") {
		seen.checkEncapsulation(t, l)
	}
}

// checkEncapsulation checks whether packets between pods were encapsulated.
func (s seenOnWire) checkEncapsulation(t *testing.T, l *lab.Lab) {
	t.Helper()
	overlaid := l.Options.Overlay != "" && l.Options.Overlay != lab.OverlayNone
	plain, wrapped := s.plain, s.wrapped
	switch {
	case overlaid && (wrapped == 0 || plain > 0):
		t.Errorf("with an overlay, %d packets of pods were wrapped in VXLAN and %d not", wrapped, plain)
	case !overlaid && (wrapped > 0 || plain == 0):
		t.Errorf("without an overlay, %d packets of pods were wrapped in VXLAN and %d not", wrapped, plain)
	}
}

// leftoversOf lists the leftovers of one of several labs in the store.
func leftoversOf(t *testing.T, name, dir string) []string {
	t.Helper()
	return slices.DeleteFunc(leftovers(t, name, dir), func(entry string) bool {
		return !strings.Contains(entry, name+".")
	})
}

// seenOnWire counts the IP packets of a capture.
type seenOnWire struct {
	bytes   int // of frames
	wrapped int // packets in VXLAN
	plain   int // packets between two addresses as they are
}

// capture is a socket that captures the packets of a host's uplink.
type capture struct{ fd int }

func startCapture(t *testing.T, host *netns.Namespace) (c capture) {
	t.Helper()
	uplink := testkit.Must(rtnl.In(host).Device(lab.Uplink))(t)
	err := host.Do(func() (err error) {
		if c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		return errors.Join(
			unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
			unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: uplink.Index}))
	})
	testkit.Succeed(t, err)
	t.Cleanup(func() { _ = unix.Close(c.fd) })
	return c
}

// seen counts the captured packets between two addresses.
func (c capture) seen(a, b netip.Addr) seenOnWire {
	var seen seenOnWire
	frame := make([]byte, 1<<17)
	for {
		n, _, err := unix.Recvfrom(c.fd, frame, unix.MSG_DONTWAIT)
		if err != nil {
			return seen
		}
		seen.add(frame[:n], a, b)
	}
}

func (s *seenOnWire) add(frame []byte, a, b netip.Addr) {
	const ethernet, ipv4, ipv6 = 14, 20, 40
	if len(frame) < ethernet+ipv6+4 {
		return
	}
	packet := frame[ethernet:]
	protocol, addrs, transport := packet[9], packet[12:ipv4], packet[ipv4:]
	switch [2]byte(frame[12:]) {
	case [2]byte{0x08, 0x00}:
	case [2]byte{0x86, 0xdd}:
		protocol, addrs, transport = packet[6], packet[8:ipv6], packet[ipv6:]
	default:
		return
	}
	s.bytes += len(frame)
	src, _ := netip.AddrFromSlice(addrs[:len(addrs)/2])
	dst, _ := netip.AddrFromSlice(addrs[len(addrs)/2:])
	switch {
	case protocol == unix.IPPROTO_UDP && binary.BigEndian.Uint16(transport[2:]) == podlink.VXLANPort:
		s.wrapped++
	case src == a && dst == b || src == b && dst == a:
		s.plain++
	}
}
