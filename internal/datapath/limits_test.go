// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestFull fills maps so that one more service, or a change of one, does not fit, by Apply and by Put: nothing changes.
// It then replaces services while no row is free: the new service fails, the old ones are deleted, and the same call
// again does the rest.
func TestFull(t *testing.T) {
	at := func(i byte, backends int) service.Service {
		var at []string
		for port := range backends {
			at = append(at, fmt.Sprint("192.168.10.10:", 1+port))
		}
		return newService(service.TCP, fmt.Sprintf("10.96.0.%d:80", i), at...)
	}
	maglev := func(i byte) service.Service {
		s := at(i, 2)
		s.Choice = service.Maglev
		return s
	}
	ranged := func(i byte, ranges ...string) service.Service {
		s := at(i, 1)
		s.SourceRanges = prefixes(ranges...)
		return s
	}
	sizes := objects.Sizes{Services: 3, Backends: 6, Tables: 40, SourceRanges: 3, Connections: 64, Endpoints: 1}
	for name, c := range map[string]struct {
		fits []service.Service
		more service.Service
		full string
		then []service.Service // that fit too
	}{
		"rows":     {[]service.Service{at(1, 1), at(2, 1), at(3, 1)}, at(4, 1), "services", nil},
		"backends": {[]service.Service{at(1, 4)}, at(2, 3), "backends", nil},
		"update":   {[]service.Service{at(1, 3), at(2, 2)}, at(1, 5), "backends", nil},
		"tables": {[]service.Service{maglev(1), maglev(2)}, maglev(3), "backend_lut", []service.Service{maglev(1), at(2, 2),
			maglev(3)}},
		"ranges": {[]service.Service{ranged(1, "10.0.0.0/8", "11.0.0.0/8")}, ranged(2, "10.0.0.0/8", "11.0.0.0/8"),
			"source_ranges", nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := openFresh(t, sizes)
			must(d.Services().Apply(t.Context(), service.CLI, c.fits))(t)
			all := slices.DeleteFunc(slices.Clone(c.fits), func(s service.Service) bool { return s.Key() == c.more.Key() })
			wantFull(t, errOf(d.Services().Apply(t.Context(), service.CLI, append(all, c.more))), c.full)
			wantFull(t, errOf2(d.Services().Put(t.Context(), service.CLI, c.more)), c.full)
			wantServices(t, d, c.fits...)
			wantClean(t, d)
			must(d.Services().Apply(t.Context(), service.CLI, c.then))(t)
			wantLen(t, rowsOf(t, d), len(c.then))
			wantClean(t, d)
		})
	}
	d, want := openFresh(t, sizes), []service.Service{at(4, 1), at(1, 1)}
	must(d.Services().Apply(t.Context(), service.CLI, []service.Service{at(1, 1), at(2, 1), at(3, 1)}))(t)
	wantFull(t, errOf(d.Services().Apply(t.Context(), service.CLI, want)), "services")
	wantServices(t, d, want[1])
	wantClean(t, d)
	must(d.Services().Apply(t.Context(), service.CLI, want))(t)
	wantServices(t, d, want[1], want[0])
	wantClean(t, d)
}

// TestNumbersUsedUp has given out all but a few numbers. The changes that would need more are refused, and change
// nothing.
func TestNumbersUsedUp(t *testing.T) {
	d := openFresh(t, objects.Sizes{})
	state := must(d.Services().o.NodeState.IDs())(t)
	state.LastRevision, state.LastService = math.MaxUint32-5, math.MaxUint32-5
	succeed(t, d.Services().o.NodeState.PutIDs(state))
	added := 0
	for port := range uint16(4) {
		s := newService(service.TCP, fmt.Sprint("10.96.0.1:", 80+port), "192.168.10.10:80")
		err := errOf2(d.Services().Put(t.Context(), service.CLI, s))
		if err == nil {
			added++
			continue
		}
		testkit.Require(t, errors.Is(err, errNumbersUsedUp), "%v", err)
	}
	services := must(d.Services().List(t.Context()))(t)
	// One takes two revisions: its own, and the change's.
	testkit.Check(t, added == 2 && len(services) == 2,
		"%d services were added, and there are %d, want 2", added, len(services))
	for _, s := range services {
		failIf(t, len(s.Backends) != 1 || s.Revision < math.MaxUint32-5, "%+v", s)
	}
}

// wantClean fails the test unless the maps hold exactly the rows of the services, and no work is marked as unfinished.
func wantClean(t *testing.T, d *Datapath) {
	t.Helper()
	sum := rows.Counts{}
	for _, s := range rowsOf(t, d) {
		sum = sum.Plus(rows.Count(s), 1)
	}
	equal(t, rowsIn(t, d.objects.Backends.Map), sum.Backends, "backends")
	equal(t, rowsIn(t, d.objects.LookUp.Map), sum.Blocks, "rows of look-up tables")
	equal(t, rowsIn(t, d.objects.SourceRanges.Map), sum.SourceRanges, "source ranges")
	wantAddresses(t, d)
	wantFiltered(t, d)
	state, err := d.objects.NodeState.IDs()
	testkit.Check(t, err == nil && state.Retiring == 0, "state %+v, %v; want nothing to retire", state, err)
}

// TestRetiring deletes the rows of removed backends, tables and source ranges, by each call that removes them, and by
// calls that find the work of a process that died.
func TestRetiring(t *testing.T) {
	for _, choice := range []service.Choice{service.Random, service.Maglev} {
		t.Run(choice.String(), func(t *testing.T) { testRetiring(t, choice) })
	}
}

func testRetiring(t *testing.T, choice service.Choice) {
	old := newService(service.Any, "10.96.0.1:80", "192.168.10.10:8080", "192.168.10.11:8080")
	fewer := newService(service.Any, "10.96.0.1:80", "192.168.10.11:8080")
	old.Choice, fewer.Choice = choice, choice
	old.SourceRanges = prefixes("10.0.0.0/8", "10.1.0.0/16", "192.168.0.0/16")
	fewer.SourceRanges = old.SourceRanges[1:]
	d := openTest(t)
	s := d.Services()
	for name, do := range map[string]func() error{
		"Apply":             func() error { return errOf(s.Apply(t.Context(), service.CLI, []service.Service{fewer})) },
		"Put":               func() error { _, _, err := s.Put(t.Context(), service.CLI, fewer); return err },
		"Apply of nothing":  func() error { _, err := s.Apply(t.Context(), service.CLI, nil); return err },
		"Delete":            func() error { return s.Delete(t.Context(), service.CLI, old.Key()) },
		"unchanged":         func() error { _, _, err := s.Put(t.Context(), service.CLI, old); return err },
		"Sweep after death": func() error { die(t, d, fewer.Key(), fewer); return s.Sweep(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			must2(s.Put(t.Context(), service.CLI, old))(t)
			succeed(t, do())
			wantClean(t, d)
		})
	}
}

// die changes a service, or deletes it, as a process does that dies before it retires the old backends.
func die(t *testing.T, d *Datapath, key service.Key, put ...service.Service) {
	t.Helper()
	w := &writer{Services: d.Services(), owner: service.CLI}
	found := must(w.at(t.Context(), key))(t)
	step := change{put: put, found: found}
	if len(put) == 0 {
		step.drop = found
	}
	succeed(t, w.write(t.Context(), []change{step}))
}

// rowsIn counts the rows of a map.
func rowsIn(t testing.TB, m *ebpf.Map) (n int) {
	t.Helper()
	var key, value []byte
	rows := m.Iterate()
	for rows.Next(&key, &value) {
		n++
	}
	succeed(t, rows.Err())
	return n
}

func withSlots(t *testing.T, connections uint32) *world {
	t.Helper()
	d := openFresh(t, objects.Sizes{Services: 64, Backends: 256, Connections: connections, Endpoints: 32})
	w := newWorld(benchOn(t, d), false, protoTCP)
	w.reset(t, objects.AttachHost)
	w.serve(t, w.service, w.backend)
	return w
}

// TestUsage opens and ends connections of two pods on all CPUs at once, with more ports than slots. Afterwards each
// pod's count must equal its open connections, and no slot may be lost.
func TestUsage(t *testing.T) {
	w, third := withSlots(t, 64), netip.MustParseAddr("192.168.10.77")
	w.endpoint(t, pod{3, objects.AttachHost, "0d", "s"}, third)
	w.serve(t, w.other, w.backend)
	p := w.loaded(t, fromHost)
	var running sync.WaitGroup
	for range 3 {
		running.Go(func() {
			for range testkit.Repeats(40_000, 1_000_000) {
				client := netip.AddrPortFrom([]netip.Addr{w.client.Addr(), third}[rand.IntN(2)], 40000+uint16(rand.IntN(24)))
				to := []netip.AddrPort{w.service, w.other, w.backend}[rand.IntN(3)]
				sent := w.next(client, to)
				if rand.IntN(3) == 0 {
					sent = w.next(w.backend, client)
				}
				sent.flags = []uint8{flagSYN, flagSYN, flagACK, flagFIN | flagACK, flagFIN | flagACK, flagRST}[rand.IntN(6)]
				if _, _, err := p.Test(sent.frame()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	running.Go(func() {
		for range 1000 {
			if _, err := w.objects.EndConnections(func(s objects.Slot) bool { return s.From.Sport%8 == 0 }); err != nil {
				t.Error(err)
				return
			}
		}
	})
	running.Wait()
	w.recount(t, 1, 2, 3)
}

// TestManyGreedyPods has pods open as many connections as they can, one pod after the other. A pod that comes last
// gets the minimum of each pod.
func TestManyGreedyPods(t *testing.T) {
	const slots, least, greedy = 2048, 8, 28
	w := withSlots(t, slots)
	open := func(client netip.Addr, count int) int {
		t.Helper()
		before := counts(t, w.Datapath)["new_connection"]
		for port := range uint16(count) {
			w.run(t, fromHost, w.first(netip.AddrPortFrom(client, 1024+port), w.service).frame())
		}
		return int(counts(t, w.Datapath)["new_connection"] - before)
	}
	all := 0
	for id := range uint32(greedy) {
		client := netip.AddrFrom4([4]byte{192, 168, 10, byte(30 + id)})
		w.endpoint(t, pod{3 + id, objects.AttachHost, "0e", "s"}, client)
		n := open(client, slots)
		failIf(t, n < least, "greedy pod %d got %d connections, want at least %d", id, n, least)
		failIf(t, id == 0 && (n < slots/2 || n > slots*2/3), "the first pod got %d of %d slots", n, slots)
		all += n
	}
	equal(t, open(w.client.Addr(), least), least, "with %d of %d slots in use, a pod without connections got", all, slots)
	equal(t, must(w.objects.Share())(t), least, "the share is")
}

// TestShareOfReusedPorts has a pod use the ports of its closed connections again, which takes over their slots: no way
// past its share.
func TestShareOfReusedPorts(t *testing.T) {
	const slots, least = 2048, 8
	w, other := withSlots(t, slots), netip.MustParseAddr("192.168.10.77")
	w.endpoint(t, pod{3, objects.AttachHost, "0d", "s"}, other)
	each := func(client netip.Addr, count int, flags ...uint8) {
		for port := range uint16(count) {
			for _, f := range flags {
				p := w.next(netip.AddrPortFrom(client, 1024+port), w.service)
				w.run(t, fromHost, p.with(func(p *packet) { p.flags = f }).frame())
			}
		}
	}
	open := func() int { return int(must(w.objects.Slots.Open())(t)) }
	each(w.client.Addr(), slots, flagSYN, flagRST)
	each(w.client.Addr(), slots, flagSYN)
	n := open()
	testkit.Check(t, n >= slots/2 && n <= slots*2/3, "a pod has %d of %d slots", n, slots)
	before := open()
	each(other, least, flagSYN)
	equal(t, open()-before, least, "connections of another pod")
	w.recount(t, 2, 3)
}

// recount compares the datapath's numbers of open connections with the slots.
func (b *bench) recount(t *testing.T, clients ...uint32) {
	t.Helper()
	const total, free, claimed = 65536, 0, 1
	want := make(map[uint32]uint64)
	for index := range uint32(b.objects.Slots.Len()) {
		var slot objects.Slot
		succeed(t, b.objects.Slots.Map.Lookup(index, &slot))
		switch b.objects.Slots.State(slot) {
		case free, objects.SlotClosed:
		case claimed:
			t.Errorf("slot %d is claimed still", index)
		default:
			want[slot.Client]++
			want[total]++
		}
	}
	succeed(t, b.objects.NodeState.ClientConns(func(conns []uint64) {
		for _, client := range append(clients, 0, total) {
			equal(t, conns[client], want[client], "row %d of client_conns", client)
		}
	}))
}

// TestEndsAtOnce has both ends of connections close at once, on two CPUs.
func TestEndsAtOnce(t *testing.T) {
	const rounds = 1000
	w := pods(t, false, protoTCP)
	w.serve(t, w.service, w.backend)
	port := func(i int) netip.AddrPort { return netip.AddrPortFrom(w.client.Addr(), uint16(10000+i)) }
	for i := range rounds {
		w.send(t, fromHost, w.first(port(i), w.service))
		w.send(t, fromHost, w.next(port(i), w.service))
	}
	w.atOnce(t, rounds, func(end, i int) packet {
		return closing([]packet{w.next(port(i), w.service), w.next(w.backend, port(i))}[end])
	})
	open, err := w.objects.Slots.Open()
	failIf(t, err != nil || open != 0, "%d connections are open still; %v", open, err)
	w.recount(t, 1, 2)
}

// atOnce runs a program on two packets at once, on two CPUs, for some rounds. It returns what they became.
func (w *world) atOnce(t *testing.T, rounds int, sent func(end, i int) packet) (became [2][][]byte) {
	t.Helper()
	p := w.loaded(t, fromHost)
	var ready atomic.Int64
	var running sync.WaitGroup
	for end := range became {
		running.Go(func() {
			for i := range rounds {
				frame := sent(end, i).frame()
				for ready.Add(1); ready.Load() < int64(2*i+2); {
					runtime.Gosched()
				}
				_, out, err := p.Test(frame)
				noError(t, err)
				became[end] = append(became[end], out)
			}
		})
	}
	running.Wait()
	return became
}

// TestFlushKilled creates the state after a killed Flush: of the two numbers of open connections, none, one or both are
// too high. The next command corrects them.
func TestFlushKilled(t *testing.T) {
	const client, total, mark = 2, 65536, 65537
	w := withSlots(t, 64)
	row := func(index uint32) (n uint64) {
		t.Helper()
		succeed(t, w.objects.NodeState.ClientConns(func(conns []uint64) { n = conns[index] }))
		return n
	}
	remains := func(want int) {
		t.Helper()
		wantLen(t, must(w.Remains())(t), want, "remains")
	}
	for port := range uint16(5) {
		w.send(t, fromHost, w.first(netip.AddrPortFrom(w.client.Addr(), 40000+port), w.service))
	}
	put := func(index uint32, n uint64) {
		t.Helper()
		succeed(t, w.objects.NodeState.ClientConns(func(conns []uint64) { conns[index] = n }))
	}
	for _, late := range [][]uint32{nil, {total}, {client, total}} {
		ended, marked := false, false
		must(w.objects.EndConnections(func(objects.Slot) (ends bool) {
			marked = row(mark) != 0
			ends, ended = !ended, true
			return ends
		}))(t)
		failIf(t, !marked, "a process that is killed now leaves no mark")
		remains(0)
		w.recount(t, client)
		for _, index := range late {
			put(index, row(index)+1)
		}
		put(mark, 1)
		remains(1)
		succeed(t, w.Recover(t.Context()))
		remains(0)
		w.recount(t, client)
	}
	equal(t, row(client), 2, "connections are left")
}
