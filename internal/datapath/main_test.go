// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"mustang/internal/datapath/kept"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(contenderVariable); root != "" {
		os.Exit(contender(root))
	}
	os.Exit(kept.Main(m, testkit.CheckLeaks))
}

// openTest opens a datapath for a few pods, in which nothing is attached or stored. Earlier tests may have loaded
// programs.
func openTest(t testing.TB) *Datapath {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	return openSized(t, Options{Root: kept.Root(t)})
}

func openSized(t testing.TB, o Options) *Datapath {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	d := must(Open(t.Context(), o))(t)
	t.Cleanup(func() { noError(t, d.Close()) })
	return d
}

// openFresh opens a datapath of other sizes, with maps of its own and without programs.
func openFresh(t testing.TB, sizes objects.Sizes) *Datapath {
	t.Helper()
	return openSized(t, Options{Root: testkit.BPFFS(t) + "/root", Sizes: sizes})
}

func pins(d *Datapath, path ...string) string {
	return filepath.Join(append([]string{d.objects.Root(), fmt.Sprintf("v%d", objects.LayoutVersion)}, path...)...)
}

func cookieOf(t testing.TB, ns *netns.Namespace) uint64 {
	t.Helper()
	return must(ns.Cookie())(t)
}

func counts(t testing.TB, d *Datapath) map[string]uint64 {
	t.Helper()
	counters := must(d.Flows().Counters())(t)
	m := make(map[string]uint64)
	for _, c := range counters {
		m[c.Name] = c.Packets
	}
	return m
}

// settled returns the counters once the packets of connections that have ended are
// through: when they have stood still for a while.
func settled(t testing.TB, d *Datapath) map[string]uint64 {
	t.Helper()
	last := counts(t, d)
	for range 1000 {
		time.Sleep(10 * time.Millisecond)
		now := counts(t, d)
		if maps.Equal(now, last) {
			return now
		}
		last = now
	}
	t.Fatal("the counters rise and rise")
	return nil
}

// delta returns the changes of the counters since before, without zeros.
func delta(t testing.TB, d *Datapath, before map[string]uint64) map[string]uint64 {
	t.Helper()
	diff := make(map[string]uint64)
	for name, n := range counts(t, d) {
		if n != before[name] {
			diff[name] = n - before[name]
		}
	}
	return diff
}

// awaitCount waits until something was counted since before.
func awaitCount(t testing.TB, d *Datapath, before map[string]uint64, name string) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if diff := delta(t, d, before); diff[name] == 0 {
			return fmt.Errorf("no %s, counted %v", name, diff)
		}
		return nil
	})
}

// Actions that the programs return.
const (
	actionNext     = 0xffffffff // TC_ACT_UNSPEC
	actionDrop     = 2          // TC_ACT_SHOT
	actionRedirect = 7          // TC_ACT_REDIRECT
)

// bench is a datapath whose programs run on test packets only.
type bench struct {
	*Datapath
	programs map[objects.Hook]*ebpf.Program
}

func newBench(t testing.TB) *bench {
	t.Helper()
	return benchOn(t, openTest(t))
}

func benchOn(t testing.TB, d *Datapath) *bench {
	t.Helper()
	b := &bench{Datapath: d, programs: make(map[objects.Hook]*ebpf.Program)}
	t.Cleanup(func() {
		for _, p := range b.programs {
			_ = p.Close()
		}
	})
	b.sendAnything(t)
	return b
}

// sendAnything lets all test packets pass the source guard. They are on the loopback device of the calling thread's
// namespace.
func (b *bench) sendAnything(t testing.TB) {
	t.Helper()
	for _, netns := range []uint64{0, ownCookie(t)} {
		key := objects.SenderKey{Netns: netns, Ifindex: 1}
		succeed(t, b.objects.Senders.Put(key, objects.Sender{Endpoint: 1, Flags: objects.SenderUnguarded}))
	}
}

// ownCookie returns the cookie of the calling thread's network namespace.
func ownCookie(t testing.TB) uint64 {
	t.Helper()
	ns := must(netns.Current())(t)
	defer ns.Close()
	return cookieOf(t, ns)
}

func (b *bench) loaded(t testing.TB, h objects.Hook) *ebpf.Program {
	t.Helper()
	if b.programs[h] == nil {
		b.programs[h] = must(b.objects.Program(h))(t)
	}
	return b.programs[h]
}

// clear empties all maps but the counters.
func (b *bench) clear(t testing.TB) {
	t.Helper()
	empty(t, b.objects.Services.Map, b.objects.ServiceAddrs.Map, b.objects.Backends.Map, b.objects.LookUp.Map,
		b.objects.Connections.Map, b.objects.Endpoints.Map)
	b.forgetFragments(t)
	must(b.objects.EndConnections(func(objects.Slot) bool { return true }))(t)
}

func (b *bench) forgetFragments(t testing.TB) {
	t.Helper()
	fragments := must(ebpf.LoadPinnedMap(pins(b.Datapath, "maps", "fragments"), nil))(t)
	defer fragments.Close()
	empty(t, fragments)
}

func empty(t testing.TB, all ...*ebpf.Map) {
	t.Helper()
	for _, m := range all {
		key := make([]byte, m.KeySize())
		for m.NextKey(nil, &key) == nil {
			succeed(t, m.Delete(key))
		}
	}
}

func (b *bench) put(t testing.TB, p service.Protocol, frontend netip.AddrPort, backends ...netip.AddrPort) uint32 {
	t.Helper()
	_, id := must2(b.Services().Put(t.Context(), service.CLI, service.Service{Frontend: frontend, Protocol: p,
		Backends: service.Backends(backends...)}))(t)
	return id
}

// tapPod is the attach point of a pod behind a TAP device. Its programs are the programs of objects.AttachHost.
const tapPod objects.AttachPoint = "tap"

// pod is an endpoint. pair is a hex digit pair, such as "0a", that its MAC address repeats; segment is one letter.
type pod struct {
	id            uint32
	at            objects.AttachPoint
	pair, segment string
}

func (b *bench) endpoint(t testing.TB, p pod, ip netip.Addr) {
	t.Helper()
	e := Endpoint{ID: p.id, IP: ip, IfIndex: int(100 + p.id), PodMAC: mac(p.pair), NodeMAC: net.HardwareAddr(mac("ee"))}
	switch p.at {
	case objects.AttachPod:
		e.segment = uint32(p.segment[0])
	case objects.AttachTun:
		e.flags, e.PodMAC, e.NodeMAC = intoTun, nil, nil
	case tapPod:
		e.flags = intoTap
	default:
		e.flags = intoPeer
	}
	succeed(t, b.Endpoints().write([]Endpoint{e}))
}

func (b *bench) run(t testing.TB, h objects.Hook, frame []byte) (uint32, []byte) {
	t.Helper()
	out := make([]byte, len(frame)+64)
	opts := &ebpf.RunOptions{Data: frame, DataOut: out}
	action := must(b.loaded(t, h).Run(opts))(t)
	return action, opts.DataOut
}

// send runs a program on a packet that prepares a case.
func (b *bench) send(t testing.TB, h objects.Hook, p packet) {
	t.Helper()
	action, _ := b.run(t, h, p.frame())
	testkit.Require(t, action != actionDrop, "a packet that prepares the case was dropped: %v to %v", p.src, p.dst)
}

// wants is the expected action, packet and counters.
type wants struct {
	action uint32
	out    *packet // nil: unchanged
	counts map[string]uint64
}

// check runs a program on p and compares the results. The counter of the run itself is not part of w.counts.
func (b *bench) check(t *testing.T, h objects.Hook, p packet, w wants) {
	t.Helper()
	b.checkFrame(t, h, p.frame(), w)
}

func (b *bench) checkFrame(t *testing.T, h objects.Hook, frame []byte, w wants) {
	t.Helper()
	b.checkRun(t, h, frame, func([]byte) wants { return w })
}

// checkRun compares the result of a run with the result of want, which gets the frame after the program.
func (b *bench) checkRun(t *testing.T, h objects.Hook, frame []byte, want func(out []byte) wants) {
	t.Helper()
	before := counts(t, b.Datapath)
	action, out := b.run(t, h, frame)
	w := want(out)
	failIf(t, action != w.action, "action %d, want %d", int32(action), int32(w.action))
	expectedFrame := frame
	if w.out != nil {
		expectedFrame = w.out.frame()
	}
	if !bytes.Equal(out, expectedFrame) && w.action != actionDrop {
		t.Errorf("packet after the program\n%s, want\n%s", hex.Dump(out), hex.Dump(expectedFrame))
	}
	expected := maps.Clone(w.counts)
	expected[h.Program]++
	diff := delta(t, b.Datapath, before)
	testkit.Check(t, maps.Equal(diff, expected), "counted %v, want %v", diff, expected)
}

// gets runs a program on p, and compares the verdict, the packet after it and the counters with a line of text.
// "redirect client>backend 0a: forward redirect_peer" is a redirected packet from the client to the backend, delivered
// to the pod whose MAC address repeats 0a; with "@0a" the source MAC address stays. Without ends the packet is as
// before.
func (w *world) gets(t *testing.T, h objects.Hook, p packet, line string) {
	t.Helper()
	result, counters, _ := strings.Cut(line, ": ")
	r := &scriptRun{world: w}
	w.checkRun(t, h, p.frame(), func(out []byte) wants { return r.result(p, result, counters, out) })
}

func once(names ...string) map[string]uint64 {
	m := make(map[string]uint64)
	for _, name := range names {
		m[name]++
	}
	return m
}

func emptyProgram(b *testing.B) *ebpf.Program {
	b.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
		License:      "Dual BSD/GPL",
	})
	succeed(b, err)
	b.Cleanup(func() { _ = p.Close() })
	return p
}
