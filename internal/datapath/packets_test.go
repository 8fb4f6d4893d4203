// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

// Each of these tests is a table of packets: a script of testdata/packets, or several.
func TestTranslate(t *testing.T)     { runScripts(t, objects.AttachHost, "translate", "headers") }
func TestDelivery(t *testing.T)      { runScripts(t, objects.AttachHost, "delivery") }
func TestFragments(t *testing.T)     { runScripts(t, objects.AttachHost, "fragments") }
func TestICMPErrors(t *testing.T)    { runScripts(t, objects.AttachHost, "icmp") }
func TestFromUplink(t *testing.T)    { runScripts(t, objects.AttachHost, "uplink") }
func TestOwnDevice(t *testing.T)     { runScripts(t, objects.AttachHost, "own") }
func TestTun(t *testing.T)           { runScripts(t, objects.AttachTun, "tun") }
func TestRefusePackets(t *testing.T) { runScripts(t, objects.AttachHost, "refuse") }
func TestEchoPackets(t *testing.T)   { runScripts(t, objects.AttachHost, "echo") }
func TestTunnel(t *testing.T)        { runScripts(t, objects.AttachHost, "tunnel") }
func TestLifecycle(t *testing.T)     { runScripts(t, objects.AttachHost, "lifecycle") }
func TestReset(t *testing.T)         { runScripts(t, objects.AttachHost, "reset") }
func TestCopies(t *testing.T)        { runScripts(t, objects.AttachHost, "copies", "filter") }
func TestChoice(t *testing.T)        { runScripts(t, objects.AttachHost, "choice") }
func TestLocalPolicy(t *testing.T)   { runScripts(t, objects.AttachHost, "local") }
func TestAffinity(t *testing.T)      { runScripts(t, objects.AttachHost, "affinity") }
func TestSourceRanges(t *testing.T)  { runScripts(t, objects.AttachHost, "ranges") }

// TestSCTPPackets is the table of SCTP packets: the table of the other protocols, and its own.
func TestSCTPPackets(t *testing.T) {
	b := newBench(t)
	for _, v6 := range []bool{false, true} {
		w := newWorld(b, v6, protoSCTP)
		for _, end := range []*netip.AddrPort{&w.backend, &w.remote, &w.other} { // no port can change
			*end = netip.AddrPortFrom(end.Addr(), w.service.Port())
		}
		runScriptsIn(t, objects.AttachHost, w, "translate", "fragments", "icmp", "uplink", "refuse", "sctp")
	}
}

// TestHandshake is the table of states of TCP connections.
func TestHandshake(t *testing.T) {
	b := newBench(t)
	for _, v6 := range []bool{false, true} {
		runScriptsIn(t, objects.AttachHost, newWorld(b, v6, protoTCP), "handshake")
	}
}

// evicted forgets connections to a service of several backends: their next packets go where the ones before went.
func (r *scriptRun) evicted(t *testing.T) {
	for port := uint16(40000); port < 40020; port++ {
		frame := r.next(netip.AddrPortFrom(r.client.Addr(), port), r.service).frame()
		_, before := r.run(t, fromHost, frame)
		r.forget(t)
		_, after := r.run(t, fromHost, frame)
		failIf(t, !bytes.Equal(before, after), "from port %d it went to another backend", port)
	}
}

// cutOff cuts a packet at each byte of its headers. BPF_PROG_TEST_RUN refuses frames that are shorter than an IP header
// without options.
func (r *scriptRun) cutOff(t *testing.T) {
	p := r.first(r.client, r.service).with(func(p *packet) { p.payload, p.options = "", 2 })
	bare := 14 + 20
	if r.v6 {
		p.extensions, bare = []extension{{kind: hopByHop, words: 1}}, 14+40
	}
	frame := p.frame()
	for n := bare; n < len(frame); n++ {
		r.checkFrame(t, fromHost, frame[:n], wants{actionDrop, nil, once("drop_malformed")})
	}
	r.gets(t, fromHost, p, "redirect client>backend 0a: new_connection forward redirect_peer")
}

// sharesOf opens connections from n ports of the pod or of the client outside, and counts them by the backend's port.
func (w *world) sharesOf(t *testing.T, outside bool, n int) map[uint16]int {
	t.Helper()
	had := make(map[netip.AddrPort]bool)
	for _, c := range must(w.Connections())(t) {
		had[c.Client] = true
	}
	w.opened += n
	for i := range n {
		port := uint16(10000 + (w.opened+i)%50000)
		if outside {
			w.send(t, fromUplink, w.first(netip.AddrPortFrom(w.outsider.Addr(), port), w.service).arriving("aa"))
		} else {
			w.send(t, fromHost, w.first(netip.AddrPortFrom(w.client.Addr(), port), w.service))
		}
	}
	counts := make(map[uint16]int)
	for _, c := range must(w.Connections())(t) {
		if !had[c.Client] {
			counts[c.Backend.Port()]++
		}
	}
	return counts
}

// sameTable removes a backend and adds it again, and forgets all connections each time. Nearly all others find their
// backends again, by new first packets and by packets of open connections.
func (r *scriptRun) sameTable(t *testing.T) {
	for _, send := range []func(src, dst netip.AddrPort) packet{r.first, r.next} {
		owners := func(backends ...string) map[netip.AddrPort]uint16 {
			r.forget(t)
			s := r.parseService(t, append([]string{"service", "maglev"}, backends...))
			putService(t, r.Datapath, s)
			for i := range 300 {
				r.send(t, fromHost, send(netip.AddrPortFrom(r.client.Addr(), uint16(10000+i)), r.service))
			}
			owners := make(map[netip.AddrPort]uint16)
			for _, c := range must(r.Connections())(t) {
				owners[c.Client] = c.Backend.Port()
			}
			equal(t, len(owners), 300, "connections")
			return owners
		}
		before, fewer, again := owners("remote:1", "remote:2", "remote:3"), owners("remote:1", "remote:2"),
			owners("remote:1", "remote:2", "remote:3")
		moved := 0
		for client, port := range before {
			if port != 3 && fewer[client] != port || again[client] != port {
				moved++
			}
		}
		failIf(t, moved > 15, "%d connections to other backends moved", moved)
	}
}

// soleBackend opens 20 connections of the client, and returns the port of the backend that gets them all.
func (w *world) soleBackend(t *testing.T) (port uint16) {
	t.Helper()
	got := w.sharesOf(t, false, 20)
	for port = range got {
	}
	testkit.Require(t, got[port] == 20, "the client's connections went to backends %v", got)
	return port
}

func (r *scriptRun) otherClients(t *testing.T) {
	used := make(map[uint16]bool)
	for range 20 {
		used[r.soleBackend(t)] = true
		r.client = netip.AddrPortFrom(r.client.Addr().Next(), r.client.Port())
		r.forget(t)
	}
	failIf(t, len(used) < 3, "20 clients got %d backends of 8", len(used))
}

// affinityTimeout expects the client to keep its backend for less than a minute.
func (r *scriptRun) affinityTimeout(t *testing.T) {
	used := make(map[uint16]bool)
	for range 20 {
		used[r.soleBackend(t)] = true
		r.ageAffinity(t, 40*time.Second)
		used[r.soleBackend(t)] = true
	}
	failIf(t, len(used) != 1, "the client got backends %v before the time-out", used)
	for range 20 {
		r.ageAffinity(t, 61*time.Second)
		used[r.soleBackend(t)] = true
	}
	failIf(t, len(used) < 3, "the client got %d backends of 8 after 20 time-outs", len(used))
}

// ageAffinity makes it longer ago that clients opened connections.
func (w *world) ageAffinity(t *testing.T, d time.Duration) {
	t.Helper()
	affinities := must(ebpf.LoadPinnedMap(pins(w.Datapath, "maps", "affinities"), nil))(t)
	defer affinities.Close()
	var key, value []byte
	aged := make(map[string][]byte) // a row that is written meanwhile may be read again
	for rows := affinities.Iterate(); rows.Next(&key, &value); {
		seen := value[len(value)-8:]
		binary.LittleEndian.PutUint64(seen, binary.LittleEndian.Uint64(seen)-uint64(d))
		aged[string(key)] = bytes.Clone(value)
	}
	for key, value := range aged {
		succeed(t, affinities.Put([]byte(key), value))
	}
}

// chunkless sends an SCTP packet that ends after its header.
func (r *scriptRun) chunkless(t *testing.T) {
	r.open(t, r.backend)
	p, want := r.next(r.client, r.service), r.next(r.client, r.backend).became(r.client, r.backend, "0a")
	// The ports alone change nothing in the header, so both frames end after it.
	end := len(p.frame()) - len(p.payload) - 4
	p.mangle, want.mangle = shorten(len(p.payload)+4), shorten(len(p.payload)+4)
	_, out := r.run(t, fromHost, p.frame()[:end])
	failIf(t, !bytes.Equal(out, want.frame()[:end]), "packet after the program\n%x, want\n%x", out, want.frame()[:end])
}

// shorten lowers the length of an IP packet.
func shorten(n int) func([]byte) {
	return func(ip []byte) {
		if ip[0]>>4 == 6 {
			ip[5] -= byte(n)
			return
		}
		ip[3] -= byte(n)
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:20]))
	}
}

// TestSegments sends a GSO packet, whose segment count must stay.
func TestSegments(t *testing.T) {
	b := newBench(t)
	for _, v6 := range []bool{false, true} {
		w := newWorld(b, v6, protoTCP)
		w.reset(t, objects.AttachHost)
		w.serve(t, w.service, w.backend)
		p := w.first(w.client, w.service).with(func(p *packet) { p.payload = string(make([]byte, 3000)) })
		// struct __sk_buff of <linux/bpf.h>.
		const segments, size, length = 164, 176, 192
		in, out := make([]byte, length), make([]byte, length)
		binary.NativeEndian.PutUint32(in[segments:], 3)
		binary.NativeEndian.PutUint32(in[size:], 1400)
		opts := &ebpf.RunOptions{Data: p.frame(), DataOut: make([]byte, 4096), Context: in, ContextOut: out}
		action := must(b.loaded(t, fromHost).Run(opts))(t)
		failIf(t, action != actionRedirect || string(opts.DataOut) != string(p.became(w.client, w.backend, "0a").frame()),
			"action %d, or the packet is wrong", action)
		equal(t, binary.NativeEndian.Uint32(out[segments:]), 3, "segments")
	}
}
