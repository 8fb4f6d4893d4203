// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

func fuzzedHooks() []objects.Hook {
	return []objects.Hook{fromHost, toHost, fromUplink, toUplink, fromOwn, toOwn, fromNetkit, toNetkit, fromTun, toTun}
}

// FuzzPrograms runs the programs on arbitrary frames, while connections are open.
func FuzzPrograms(f *testing.F) {
	n := newNode(f)
	r := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		hook, p := n.random(r)
		f.Add(hook, p.frame())
	}
	f.Fuzz(func(t *testing.T, hook byte, frame []byte) {
		if len(frame) >= 14 && len(frame) <= 3000 {
			n.check(t, fuzzedHooks()[int(hook)%len(fuzzedHooks())], frame)
		}
	})
}

// TestRandomPackets runs the programs on packets of random fields, and requires some packets of each kind.
func TestRandomPackets(t *testing.T) {
	n := newNode(t)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	total := make(map[string]uint64)
	for range testkit.Repeats(2000, 50000) {
		hook, p := n.random(r)
		for name, count := range n.check(t, fuzzedHooks()[hook], p.frame()) {
			total[name] += count
		}
		testkit.Require(t, !t.Failed(), "seed %d", seed)
	}
	for _, name := range []string{"forward", "reverse", "port_changed", "icmp_error", "icmp_echo", "unknown_fragment",
		"drop_malformed", "drop_extensions"} {
		failIf(t, total[name] == 0, "no %s, seed %d", name, seed)
	}
	t.Logf("counted %v", total)
}

// node has both pods, two services in each family and protocol, and open connections.
type node struct {
	worlds []*world
	dirty  bool // whether a packet may have changed the state
}

func newNode(t testing.TB) *node {
	t.Helper()
	b, n := newBench(t), &node{dirty: true}
	b.clear(t)
	for _, v6 := range []bool{false, true} {
		for _, proto := range []uint8{protoTCP, protoUDP} {
			w := newWorld(b, v6, proto)
			w.tunAddresses()
			w.endpoint(t, pod{1, objects.AttachHost, "0a", "s"}, w.backend.Addr())
			w.endpoint(t, pod{2, objects.AttachHost, "0c", "s"}, w.client.Addr())
			w.serve(t, w.service, w.backend)
			w.serve(t, w.other, w.backend, w.remote)
			n.worlds = append(n.worlds, w)
		}
	}
	return n
}

// settle restores the state before the first packet: some connections are open, and the programs remember nothing else.
func (n *node) settle(t *testing.T) {
	t.Helper()
	if !n.dirty {
		return
	}
	n.worlds[0].forget(t)
	n.worlds[0].forgetFragments(t)
	for _, w := range n.worlds {
		w.send(t, fromHost, w.first(w.client, w.service))
		w.send(t, fromHost, w.first(netip.AddrPortFrom(w.client.Addr(), 40001), w.other))
		w.send(t, fromHost, w.first(netip.AddrPortFrom(w.backend.Addr(), 40000), w.service))
		w.send(t, fromUplink, w.first(w.outsider, w.service).arriving("aa"))
		first, _ := w.parts(w.first(w.client, w.service))
		w.send(t, fromHost, first)
	}
	n.dirty = false
}

// outcome is the result of a program for a frame.
type outcome struct {
	hook    objects.Hook
	in, out []byte
	action  uint32
	counted map[string]uint64
}

// check runs a program on a frame, and fails the test unless the result is right. It returns the counters' changes.
func (n *node) check(t *testing.T, h objects.Hook, frame []byte) map[string]uint64 {
	t.Helper()
	n.settle(t)
	b := n.worlds[0].bench
	before := counts(t, b.Datapath)
	options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+64)}
	action, err := b.loaded(t, h).Run(options)
	if errors.Is(err, unix.EINVAL) && len(frame) < 14+40 {
		return nil // the kernel requires a whole IP header
	}
	succeed(t, err)
	o := outcome{hook: h, in: frame, out: options.DataOut, action: action, counted: delta(t, b.Datapath, before)}
	seen := viewFrame(frame, h.Point != objects.AttachTun)
	n.dirty = seen.class == classIP
	if wrong := o.wrong(n, seen); wrong != "" {
		t.Errorf("%s of %s: %s\naction %d, counted %v, seen %+v\nframe\n%sbecame\n%s", h.Program, h.Point, wrong,
			int32(action),
			o.counted, seen, hex.Dump(frame), hex.Dump(o.out))
	}
	return o.counted
}

// wrong returns the error; empty if there is none.
func (o outcome) wrong(n *node, seen view) string {
	drops := uint64(0)
	for name, count := range o.counted {
		if strings.HasPrefix(name, "drop_") {
			drops += count
		}
	}
	uplink := o.hook.Point == objects.AttachUplink
	switch {
	case o.counted[o.hook.Program] != 1:
		return "the run was not counted once"
	case !slices.Contains([]uint32{actionNext, actionDrop, actionRedirect}, o.action):
		return "unknown action"
	case (o.action == actionDrop) != (drops == 1) || drops > 1:
		return "a drop without its counter, or the reverse"
	case seen.class == classOther || seen.class != classIP && uplink:
		if o.action != actionNext || !bytes.Equal(o.in, o.out) {
			return "no packet of ours, but it was touched"
		}
	case seen.class != classIP:
		if o.action != actionDrop {
			return "malformed, and not dropped"
		}
	case o.counted["drop_no_route"] == 1 && uplink: // to the backend on another node, to which the test lacks a network
	case o.action == actionDrop:
		return "dropped"
	default:
		return o.wrongPacket(n, seen)
	}
	return ""
}

// wrongPacket compares a whole packet of IP before and after.
func (o outcome) wrongPacket(n *node, seen view) string {
	out, tun := o.out, o.hook.Point == objects.AttachTun
	grown := tun && o.action == actionRedirect && len(out) == len(o.in)+14 // it got the header that the device needs
	moved := o.action == actionRedirect || o.counted["l2_delivered"] > 0
	switch {
	case !grown && len(out) != len(o.in):
		return "the size changed"
	case (grown || !tun) && !bytes.Equal(out[12:14], o.in[12:14]):
		return "the ethertype is wrong"
	case !tun && !moved && !bytes.Equal(out[:12], o.in[:12]):
		return "it stays, but its MAC addresses changed"
	case grown:
		out = out[14:]
	}
	if o.counted["icmp_echo"] > 0 || n.mustEcho(o, seen) {
		return n.wrongEcho(o, seen)
	}
	now := seen.parser()(out, seen.l3)
	if !slices.Equal(seen.sums(o.in), now.sums(out)) {
		return "a checksum is wrong"
	}
	if !bytes.Equal(seen.blank(o.in), now.blank(out)) {
		return "bytes changed beside addresses, ports and checksums"
	}
	if wrong := n.wrongEnds(o, seen, now); wrong != "" {
		return wrong
	}
	same := seen.src == now.src && seen.dst == now.dst
	if q, ok := seen.quote(o.in); ok && seen.icmpError {
		after, _ := now.quote(out)
		same = same && q.src == after.src && q.dst == after.dst
	}
	if same && !bytes.Equal(o.in[seen.l3:], out[now.l3:]) {
		return "it was not translated, but changed"
	}
	return ""
}

func (v view) parser() func([]byte, int) view {
	if v.v6 {
		return viewIPv6
	}
	return viewIPv4
}
