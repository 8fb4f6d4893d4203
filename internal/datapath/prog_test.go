// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/hex"
	"maps"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"mustang/internal/lb"
)

// What the programs answer.
const (
	verdictNext     = 0xffffffff // TC_ACT_UNSPEC
	verdictDrop     = 2          // TC_ACT_SHOT
	verdictRedirect = 7          // TC_ACT_REDIRECT
)

// bench is a datapath with its programs, and nobody attached.
type bench struct {
	*Datapath
	programs map[hook]*ebpf.Program
}

func newBench(t testing.TB) *bench {
	t.Helper()
	return benchOn(t, openTest(t))
}

func benchOn(t testing.TB, d *Datapath) *bench {
	t.Helper()
	b := &bench{Datapath: d, programs: make(map[hook]*ebpf.Program)}
	t.Cleanup(func() {
		for _, p := range b.programs {
			_ = p.Close()
		}
	})
	return b
}

// loaded is the program of a hook.
func (b *bench) loaded(t testing.TB, h hook) *ebpf.Program {
	t.Helper()
	if b.programs[h] == nil {
		p, err := b.program(h)
		if err != nil {
			t.Fatal(err)
		}
		b.programs[h] = p
	}
	return b.programs[h]
}

// clear empties all tables but the counters.
func (b *bench) clear(t testing.TB) {
	t.Helper()
	for _, m := range []*ebpf.Map{b.maps.Services, b.maps.Backends, b.maps.Connections, b.maps.Endpoints, b.maps.Connected, b.maps.Fragments} {
		key := make([]byte, m.KeySize())
		for m.NextKey(nil, &key) == nil {
			if err := m.Delete(key); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// put makes a service, and fails the test if that doesn't work.
func (b *bench) put(t testing.TB, p lb.Protocol, frontend netip.AddrPort, backends ...netip.AddrPort) uint32 {
	t.Helper()
	_, id, err := b.PutService(lb.Service{Frontend: frontend, Protocol: p, Backends: backends})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// tapPod makes a pod one that is behind a TAP device. The programs are those of hostSide.
const tapPod side = "tap"

// pod is an endpoint whose MAC is a digit pair, such as "0a", on a segment of one letter.
type pod struct {
	id            uint32
	side          side
	pair, segment string
}

// endpoint makes a row for an address of a pod.
func (b *bench) endpoint(t testing.TB, p pod, ip netip.Addr) {
	t.Helper()
	e := Endpoint{ID: p.id, IP: ip, IfIndex: int(100 + p.id), PodMAC: mac(p.pair), NodeMAC: net.HardwareAddr(mac("ee"))}
	switch p.side {
	case podSide:
		e.segment = uint32(p.segment[0])
	case tunSide:
		e.flags, e.PodMAC, e.NodeMAC = intoTun, nil, nil
	case tapPod:
		e.flags = intoTap
	default:
		e.flags = intoPeer
	}
	if err := b.putEndpoints([]Endpoint{e}); err != nil {
		t.Fatal(err)
	}
}

// run passes a frame through a program.
func (b *bench) run(t testing.TB, h hook, frame []byte) (uint32, []byte) {
	t.Helper()
	out := make([]byte, len(frame)+64)
	opts := &ebpf.RunOptions{Data: frame, DataOut: out}
	verdict, err := b.loaded(t, h).Run(opts)
	if err != nil {
		t.Fatal(err)
	}
	return verdict, opts.DataOut
}

// send is a packet that a case has passed before the one that it is about.
func (b *bench) send(t testing.TB, h hook, p packet) {
	t.Helper()
	if verdict, _ := b.run(t, h, p.frame()); verdict == verdictDrop {
		t.Fatalf("a packet of the preparation was dropped: %v to %v", p.src, p.dst)
	}
}

// wants is what a packet must come to.
type wants struct {
	verdict uint32
	out     *packet // nil: as it went in
	counts  map[string]uint64
}

// check passes p and compares all that came of it. The run itself need not be in the counts.
func (b *bench) check(t *testing.T, h hook, p packet, w wants) {
	t.Helper()
	b.checkFrame(t, h, p.frame(), w)
}

func (b *bench) checkFrame(t *testing.T, h hook, frame []byte, w wants) {
	t.Helper()
	before := counts(t, b.Datapath)
	verdict, out := b.run(t, h, frame)
	if verdict != w.verdict {
		t.Errorf("verdict %d, want %d", int32(verdict), int32(w.verdict))
	}
	want := frame
	if w.out != nil {
		want = w.out.frame()
	}
	if !bytes.Equal(out, want) && w.verdict != verdictDrop {
		t.Errorf("came out as\n%s, want\n%s", hex.Dump(out), hex.Dump(want))
	}
	expected := maps.Clone(w.counts)
	expected[h.program]++
	if diff := delta(t, b.Datapath, before); !maps.Equal(diff, expected) {
		t.Errorf("counted %v, want %v", diff, expected)
	}
}

// once is the counts of counters that go up by one.
func once(names ...string) map[string]uint64 {
	m := make(map[string]uint64)
	for _, name := range names {
		m[name]++
	}
	return m
}
