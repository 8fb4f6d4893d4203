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

// TestForgingOutside has root in a pod send to the network of the parent, from addresses that are not its own, and announce another
// pod's, in all ways that it has past its program too. Nothing of that leaves the parent, and all of it with the guard off.
func TestForgingOutside(t *testing.T) {
	for _, m := range linkModes() {
		if m.name != "macvlan" && !strings.HasPrefix(m.name, "ipvlan") {
			continue
		}
		for _, alone := range []bool{false, true} {
			t.Run(m.name+map[bool]string{true: ", guard alone"}[alone], func(t *testing.T) {
				f := newForger(t, m)
				o := f.addOutside(t)
				if alone {
					o.loseEndpoints(t)
				}
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
			})
		}
	}
}

// outsider is a machine on the network of the parent, beside a pod that forges packets.
type outsider struct {
	*forger
	alone  bool // the pods are no endpoints
	ns     *netns.Namespace
	socket int // of packets that arrive there
}

// addOutside puts the other end of the parent's link into a namespace of its own.
func (f *forger) addOutside(t *testing.T) *outsider {
	t.Helper()
	o := &outsider{forger: f, ns: testkit.Namespace(t, "outside")}
	f.run(t, strings.NewReplacer("OUT", o.ns.Name()).Replace(`
		-n HOST link set up1 netns OUT
		-n OUT addr add `+beyond[0].String()+`/24 dev up1
		-n OUT addr add `+beyond[1].String()+`/64 dev up1 nodad
		-n OUT link set up1 up
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

// ways are those of forger, by AF_XDP, and by a VLAN on another device.
func (o *outsider) ways(t *testing.T) []way {
	t.Helper()
	ways := append(o.forger.ways(t), way{name: "by AF_XDP", bypass: true, index: o.device.Index, xdp: true})
	second := o.another(t, "eth1")
	ways = append(ways, way{name: "tagged, past the queue", bypass: true, skip: true, index: o.device.Index, tagged: true},
		way{name: "tagged, by a second device", bypass: true, index: second.Index, tagged: true})
	if o.device.Kind != "macvlan" { // the kernel has no VLANs on ipvlans
		return ways
	}
	vlan, err := rtnl.In(o.pods[1]).Device("eth1.5")
	if err != nil {
		add := exec.Command("ip", "-n", o.pods[1].Name(), "link", "add", "link", "eth1", "name", "eth1.5", "type", "vlan", "id", "5")
		if out, err := add.CombinedOutput(); strings.Contains(string(out), "Unknown device type") {
			t.Log("the kernel has no VLANs; that of the guest has")
			return ways
		} else if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		o.run(t, "-n PODB link set eth1.5 up")
		vlan = must(rtnl.In(o.pods[1]).Device("eth1.5"))(t)
	}
	return append(ways, way{name: "by a VLAN on a second device", bypass: true, index: vlan.Index})
}

// frame returns a frame of the pod to the machine.
func (o *outsider) frame(from netip.Addr, text string, tagged bool) []byte {
	family := map[bool]int{true: 1}[from.Is6()]
	p := packet{src: netip.AddrPortFrom(from, 4000), dst: netip.AddrPortFrom(beyond[family], 4444), proto: protoUDP, payload: text}
	kind := [][]byte{{0x08, 0x00}, {0x86, 0xdd}}[family]
	if tagged {
		kind = append([]byte{0x81, 0x00, 0, 5}, kind...)
	}
	return slices.Concat(o.next, o.own, kind, p.ip())
}

// forge sends forged datagrams, and an honest one behind each: that alone arrives. With the guard off, both do.
func (o *outsider) forge(t *testing.T, family int, way way, guarded bool) {
	t.Helper()
	own := [2]netip.Addr{own4, own6}[family]
	third := [2]netip.Addr{netip.MustParseAddr("192.168.10.12"), netip.MustParseAddr("fd00:10::c")}[family]
	testkit.Eventually(t, 10*time.Second, func() error { // neighbours are to be known
		o.send(t, o.frame(own, "ready", false), o.honest())
		return o.arrives("ready", "")
	})
	for _, from := range []netip.Addr{third, [2]netip.Addr{outside4, outside6}[family], hostOut[family]} {
		before := counts(t, o.d)
		o.send(t, o.frame(from, "forged", way.tagged), way)
		if !guarded {
			if err := o.arrives("forged", ""); err != nil && !o.kernelDrops(way) {
				t.Errorf("from %s: %v", from, err)
			}
			continue
		}
		o.send(t, o.frame(own, "honest", false), o.honest())
		if err := o.arrives("honest", "forged"); err != nil {
			t.Errorf("from %s: %v", from, err)
		}
		counted := delta(t, o.d, before)
		if n := counted["drop_source"] + counted["drop_ethertype"]; n != 1 && !o.kernelDrops(way) {
			t.Errorf("from %s: counted %v", from, counted)
		}
	}
	if !way.tagged && (o.mode == "macvlan" || o.mode == "ipvlan-l2") { // the others have no neighbours
		o.announce(t, third, own, way, guarded)
	}
}

// announce sends an ARP reply or neighbour advertisement for another pod's address, and an honest datagram behind it.
//
//revive:disable-next-line:argument-limit // t comes on top of the four that say who sends what how
func (o *outsider) announce(t *testing.T, third, own netip.Addr, way way, guarded bool) {
	t.Helper()
	frame := o.announcement(third)
	text := string(frame[14:])
	before := counts(t, o.d)
	o.send(t, frame, way)
	if !guarded {
		if err := o.arrives(text, ""); err != nil && !o.kernelDrops(way) {
			t.Errorf("announcing %s: %v", third, err)
		}
		return
	}
	o.send(t, o.frame(own, "honest", false), o.honest())
	if err := o.arrives("honest", text); err != nil {
		t.Errorf("announcing %s: %v", third, err)
	}
	counted := delta(t, o.d, before)
	if n := counted["drop_neighbour"] + counted["drop_source"]; n != 1 && !o.kernelDrops(way) {
		t.Errorf("announcing %s: counted %v", third, counted)
	}
}

// kernelDrops reports whether an ipvlan takes no such packets.
func (o *outsider) kernelDrops(way way) bool {
	return o.device.Kind == "ipvlan" && (way.xdp || way.tagged)
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
