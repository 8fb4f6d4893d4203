// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

// copyWorld is a world whose client is certainly the sender of its packets, so that the programs use their copies.
type copyWorld struct {
	*world
	hook objects.Hook
	port uint16 // the source port of the last packet after the program
}

func newCopyWorld(t *testing.T, b *bench, hook objects.Hook, v6 bool) *copyWorld {
	t.Helper()
	w := &copyWorld{world: newWorld(b, v6, protoUDP), hook: hook}
	w.reset(t, hook.Point)
	w.move(t, "0c")
	for _, netns := range []uint64{0, ownCookie(t)} { // the address alone lets packets pass
		succeed(t, w.objects.Senders.Delete(objects.SenderKey{Netns: netns, Ifindex: 1}))
	}
	t.Cleanup(func() { w.sendAnything(t) })
	runtime.LockOSThread() // copies are of a CPU
	t.Cleanup(runtime.UnlockOSThread)
	return w
}

// move gives the client's pod a MAC address, on the device of test packets.
func (w *copyWorld) move(t *testing.T, pair string) {
	t.Helper()
	e := Endpoint{ID: 2, IP: w.client.Addr(), IfIndex: 1, PodMAC: mac(pair), NodeMAC: mac("ee"), netns: ownCookie(t)}
	if w.hook.Point == objects.AttachPod {
		e.segment = 's'
	} else {
		e.flags = intoPeer
	}
	succeed(t, w.Endpoints().write([]Endpoint{e}))
}

// sends sends a packet of the client, and returns the receiver that it then has; none if it was dropped.
func (w *copyWorld) sends(t *testing.T, to netip.AddrPort) (receiver netip.AddrPort) {
	t.Helper()
	p := w.next(w.client, to)
	p.ethSrc = "0c"
	action, out := w.run(t, w.hook, p.frame())
	if action == actionDrop {
		return receiver
	}
	addr, ports := out[30:34], out[34:]
	if w.v6 {
		addr, ports = out[38:54], out[54:]
	}
	ip, _ := netip.AddrFromSlice(addr)
	w.port = binary.BigEndian.Uint16(ports)
	return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(ports[2:]))
}

// TestNoChangeIsLate changes policies, addresses of the pod, services and backends while the programs use copies of
// rows: the first packet after a change is subject to it.
func TestNoChangeIsLate(t *testing.T) {
	var none netip.AddrPort
	eachCopyWorld(t, func(t *testing.T, w *copyWorld) {
		w.serve(t, w.service, w.backend)
		w.serve(t, w.other, w.outsider)
		changes := []struct {
			name         string
			do, undo     func()
			to, was, now netip.AddrPort
			moved        bool // to another source port, so that answers are told apart
		}{
			{"a policy", func() { w.applyPacketPolicies(t, false, denyEgressB) },
				func() { w.applyPacketPolicies(t, false) }, w.outsider, w.outsider, none, false},
			{"a policy for a service's backend", func() { w.applyPacketPolicies(t, false, denyIngressA) },
				func() { w.applyPacketPolicies(t, false) }, w.service, w.backend, none, false},
			{"another MAC address", func() { w.move(t, "0d") }, func() { w.move(t, "0c") },
				w.outsider, w.outsider, none, false},
			{"a new service", func() { w.serve(t, w.outsider, w.backend) }, func() { w.unserve(t, w.outsider) },
				w.outsider, w.outsider, w.backend, false},
			{"another backend", func() { w.serve(t, w.service, w.remote) }, func() { w.serve(t, w.service, w.backend) },
				w.service, w.backend, w.remote, false},
			{"a service by the flow's own ends", func() { w.sends(t, w.other) },
				func() { w.forget(t) }, w.outsider, w.outsider, w.outsider, true},
		}
		for range testkit.Repeats(5, 400) {
			for _, c := range changes {
				for range 3 {
					equal(t, w.sends(t, c.to), c.was, "before %s", c.name)
				}
				c.do()
				equal(t, w.sends(t, c.to), c.now, "after %s", c.name)
				testkit.Check(t, !c.moved || w.port != w.client.Port(), "the same source port after %s", c.name)
				c.undo()
				equal(t, w.sends(t, c.to), c.was, "after the end of %s", c.name)
			}
		}
	})
}

func eachCopyWorld(t *testing.T, run func(t *testing.T, w *copyWorld)) {
	t.Helper()
	b := newBench(t)
	for _, hook := range []objects.Hook{fromHost, fromOwn} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/ipv6=%v", hook.Point, v6), func(t *testing.T) { run(t, newCopyWorld(t, b, hook, v6)) })
		}
	}
}
