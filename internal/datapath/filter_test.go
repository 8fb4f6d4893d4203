// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

const bloomOffset = 768 // where the bloom filter is in a row of node_state

func filterBytes(t testing.TB, d *Datapath) []byte {
	t.Helper()
	row := make([]byte, 1<<17)
	must(must(d.objects.NodeState.Map.Memory())(t).ReadAt(row, bloomOffset))(t)
	return row
}

// wantFiltered fails the test unless the bits of all services are set. It sets them, so that it finds a fault once.
func wantFiltered(t *testing.T, d *Datapath) {
	t.Helper()
	var keys []objects.ServiceKey
	for row, err := range d.objects.Services.All() {
		succeed(t, err)
		keys = append(keys, row.Key)
	}
	before := filterBytes(t, d)
	succeed(t, d.objects.NodeState.AddFrontends(keys))
	testkit.Check(t, bytes.Equal(before, filterBytes(t, d)),
		"a service is stored whose bit in the filter is clear: programs do not find it")
}

func (w *world) random() netip.AddrPort {
	var bytes [16]byte
	for i := range bytes {
		bytes[i] = byte(rand.Uint32())
	}
	port := uint16(1 + rand.IntN(65535))
	bytes[0] = 0xfd
	if w.v6 {
		return netip.AddrPortFrom(netip.AddrFrom16(bytes), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, bytes[1], bytes[2], bytes[3]}), port)
}

func (w *world) collision(t *testing.T) netip.AddrPort {
	t.Helper()
	bit := (*objects.NodeState)(nil).Bit(rows.ServiceKey(w.service, service.Protocol(w.proto)))
	for range 1 << 27 {
		if other := w.random(); other != w.service &&
			(*objects.NodeState)(nil).Bit(rows.ServiceKey(other, service.Protocol(w.proto))) == bit {
			return other
		}
	}
	t.Fatal("no other address has the bit")
	return netip.AddrPort{}
}

// TestFilterOfOwners lets an owner set one bit of a word again and again while another one sets the others: none is
// lost.
func TestFilterOfOwners(t *testing.T) {
	d := openTest(t)
	var keys []objects.ServiceKey
	for i := 0; len(keys) < 30; i++ {
		key := objects.ServiceKey{Port: uint16(i), Proto: uint8(1 + i>>16)}
		if (*objects.NodeState)(nil).Bit(key)/64 == 7 {
			keys = append(keys, key)
		}
	}
	often := slices.Repeat(keys[:1], 1<<20)
	for range 20 {
		must(must(d.objects.NodeState.Map.Memory())(t).WriteAt(make([]byte, 1<<17), bloomOffset))(t)
		var first sync.WaitGroup
		first.Go(func() {
			noError(t, d.objects.NodeState.AddFrontends(often))
		})
		for bit := (*objects.NodeState)(nil).Bit(keys[0]); filterBytes(t, d)[bit/8]>>(bit%8)&1 == 0; {
		}
		for _, key := range keys[1:] {
			succeed(t, d.objects.NodeState.AddFrontends([]objects.ServiceKey{key}))
		}
		first.Wait()
		row := filterBytes(t, d)
		for _, key := range keys {
			bit := (*objects.NodeState)(nil).Bit(key)
			testkit.Require(t, row[bit/8]>>(bit%8)&1 != 0, "bit %d was lost", bit)
		}
	}
}

// TestPodAtFrontend refuses a pod that has an address of the host or of a service, and takes it when these are gone.
func TestPodAtFrontend(t *testing.T) {
	n, d := routed(t), openTest(t)
	refused := func(words string) {
		t.Helper()
		wantConflict(t, errOf2(d.Endpoints().Put(t.Context(), n.attachment(0))), words)
		wantEndpoints(t, d)
		wantLinks(t, d, 0)
	}
	n.run(t, "-n HOST addr add "+podA4+"/32 dev lo")
	refused("its address " + podA4 + " belongs to the host")
	n.run(t, "-n HOST addr del "+podA4+"/32 dev lo")
	s := newService(service.TCP, "["+podA6+"]:80")
	putService(t, d, s)
	refused("its address " + podA6 + " belongs to a service")
	succeed(t, d.Services().Delete(t.Context(), service.CLI, s.Key()))
	wantPut(t, d, n.attachment(0), Added)
}

// TestFrontendAtPod refuses a service that has the address of a pod, by Put and in a set.
func TestFrontendAtPod(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.attachBoth(t, d)
	for _, owner := range []service.Owner{service.CLI, service.CNI} {
		s := newService(service.TCP, "["+podA6+"]:80")
		for _, err := range []error{
			errOf2(d.Services().Put(t.Context(), owner, s)),
			errOf(d.Services().Apply(t.Context(), owner, []service.Service{s})),
		} {
			wantConflict(t, err, "the address belongs to endpoint")
		}
	}
	wantLen(t, must(d.Services().List(t.Context()))(t), 0, "services")
}

// wantConflict fails the test unless an error is a conflict, and one line that has all the words.
func wantConflict(t *testing.T, err error, words ...string) {
	t.Helper()
	failsAs[*ConflictError](t, err)
	testkit.Fails(t, err, words...)
	failIf(t, strings.Contains(err.Error(), "\n"), "more than a line: %v", err)
}

// TestBackendThatIsService has a service call another one: calls are translated once.
func TestBackendThatIsService(t *testing.T) {
	d := openTest(t)
	putService(t, d, newService(service.TCP, "10.96.0.2:80"))
	for _, protocol := range []service.Protocol{service.Any, service.TCP} {
		s := newService(protocol, "10.96.0.1:80", "10.96.0.2:80")
		wantConflict(t, errOf2(d.Services().Put(t.Context(), service.CLI, s)), "10.96.0.2:80 is a service")
	}
	putService(t, d, newService(service.UDP, "10.96.0.1:80", "10.96.0.2:80"))
}

// TestDeleteWhileOpening deletes a pod, or a service, while other pods open connections to it: no connection may
// refer to the pod or the service afterwards.
func TestDeleteWhileOpening(t *testing.T) {
	w := newWorld(newBench(t), false, protoUDP)
	for _, c := range []struct {
		name   string
		remove func() error
	}{
		{"endpoint", func() error { return w.Endpoints().Delete(t.Context(), 1) }},
		{"service", func() error {
			return w.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: w.service, Protocol: service.UDP})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range testkit.Repeats(100, 300) {
				w.reset(t, objects.AttachHost)
				id := w.serve(t, w.service, w.backend)
				stop := w.opening(t)
				succeed(t, c.remove())
				stop()
				w.unknown(t, id, c.name == "service")
			}
		})
	}
}

// opening opens connections to the service on another CPU until the result is called.
func (w *world) opening(t *testing.T) (stop func()) {
	t.Helper()
	p := w.loaded(t, fromHost)
	var ended atomic.Bool
	var running sync.WaitGroup
	begun := make(chan struct{})
	running.Go(func() {
		for port := uint16(1024); !ended.Load() && port < 5000; port++ {
			noError(t, errOf2(p.Test(w.next(netip.AddrPortFrom(w.client.Addr(), port), w.service).frame())))
			if port == 1034 {
				close(begun)
			}
		}
	})
	<-begun
	return func() {
		ended.Store(true)
		running.Wait()
	}
}

// unknown fails the test if a valid connection refers to the first pod, or to the service with the id.
func (w *world) unknown(t *testing.T, id uint32, service bool) {
	t.Helper()
	known := make(map[netip.AddrPort]bool)
	succeed(t, w.objects.Slots.Each(func(_ uint32, slot objects.Slot) bool {
		if service && slot.Service == id || !service && slot.Backend == 1 {
			known[rows.DecodeAddrPort(slot.From.Saddr, slot.From.Sport)] = true
		}
		return true
	}))
	for _, c := range must(w.ConnectionTable().List(flows.Filter{}))(t) {
		testkit.Require(t, !known[c.Client], "connection %+v is valid", c)
	}
}

// onCPUs calls fn on the first CPUs that the process may use, as many as are wanted if it can.
func onCPUs(t *testing.T, wanted int, fn func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all unix.CPUSet
	succeed(t, unix.SchedGetaffinity(0, &all))
	defer func() {
		noError(t, unix.SchedSetaffinity(0, &all))
	}()
	for cpu, left := 0, min(wanted, all.Count()); left > 0; cpu++ {
		if !all.IsSet(cpu) {
			continue
		}
		left--
		var one unix.CPUSet
		one.Set(cpu)
		succeed(t, unix.SchedSetaffinity(0, &one))
		fn()
	}
}

// TestCopiesExpire deletes rows without a notice to the programs, like a process that is killed before the notice.
// The programs' copies serve for about a second.
func TestCopiesExpire(t *testing.T) {
	w := pods(t, false, protoTCP)
	w.open(t, w.backend)
	forward, direct := w.next(w.client, w.service), w.next(w.client, netip.AddrPortFrom(w.backend.Addr(), 9))
	w.send(t, fromHost, forward)
	w.send(t, fromHost, direct)
	w.evict(t)
	succeed(t, w.objects.Endpoints.Delete(rows.EncodeAddr(w.backend.Addr())))
	before := counts(t, w.Datapath)
	for range 1000 {
		w.run(t, fromHost, direct.frame())
		w.run(t, fromHost, forward.frame())
		time.Sleep(10 * time.Millisecond)
		if diff := delta(t, w.Datapath, before); diff["new_connection"] > 0 && diff["passed"] > 0 {
			return
		}
	}
	t.Error("the copies of deleted rows are used still")
}

// TestFirstPacketsLookNothingUp deletes the rows of a connection that was just opened, without a notice to the
// programs. Copies made with the rows serve for the next packets, and record these packets' changes in the slot. A
// copy serves until the clock of the copies strikes, so a few connections are tried.
func TestFirstPacketsLookNothingUp(t *testing.T) {
	w := pods(t, false, protoTCP)
	w.serve(t, w.service, w.backend)
	for port := uint16(40000); port < 40020; port++ {
		client := netip.AddrPortFrom(w.client.Addr(), port)
		back := w.first(w.backend, client).with(func(p *packet) { p.flags = flagSYN | flagACK })
		there := w.next(client, w.service).with(func(p *packet) { p.ack = 1 })
		served := 0
		onCPUs(t, 2, func() {
			w.forget(t)
			w.send(t, fromHost, w.first(client, w.service))
			w.evict(t)
			_, answered := w.run(t, fromHost, back.frame())
			_, acknowledged := w.run(t, fromHost, there.frame())
			if string(answered) == string(back.became(w.service, client, "0c").frame()) &&
				string(acknowledged) == string(there.became(client, w.backend, "0a").frame()) {
				served++
				w.inState(t, flows.StateEstablished)
			}
		})
		if served > 0 {
			return
		}
	}
	t.Error("the packets after the first one needed the rows of each connection")
}

// TestShortConnectionsReuseSlots opens and closes connections for longer than closed ones keep their slots. Later ones
// take the slots of the first, whose memory is in the processor's caches.
func TestShortConnectionsReuseSlots(t *testing.T) {
	const slots, each = 16384, 400
	w := withSlots(t, slots)
	used := 0
	for try := range uint16(5) { // a machine may be so slow that some still keep their slots
		w.forget(t)
		w.clearSlots(t)
		onCPUs(t, 2, func() {
			w.openAndClose(t, 10000+try*1000, each)
			time.Sleep(1500 * time.Millisecond) // the slots of closed connections are kept for a second
			w.openAndClose(t, 10000+try*1000+each, each)
		})
		used = 0
		for index := range uint32(slots) {
			var slot objects.Slot
			succeed(t, w.objects.Slots.Map.Lookup(index, &slot))
			if slot.Use > 0 {
				used++
			}
		}
		if used < 3*each {
			return
		}
	}
	t.Errorf("twice %d connections on each of two CPUs took %d slots", each, used)
}

// clearSlots makes all slots as they were before the first connection.
func (w *world) clearSlots(t *testing.T) {
	t.Helper()
	for index := range uint32(w.objects.Slots.Len()) {
		succeed(t, w.objects.Slots.Map.Put(index, objects.Slot{}))
	}
}

// evict empties the map of connections without a notice to the programs.
func (w *world) evict(t *testing.T) {
	t.Helper()
	for row, err := range w.objects.Connections.All() {
		succeed(t, errors.Join(err, w.objects.Connections.Delete(row.Key)))
	}
}

func (w *world) unserve(t *testing.T, frontend netip.AddrPort) {
	t.Helper()
	succeed(t, w.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: frontend,
		Protocol: service.Protocol(w.proto)}))
}

// age makes all connections older, by less than the time since the machine has started.
func (w *world) age(t *testing.T, d time.Duration) {
	t.Helper()
	w.ageAll(t, func(slot *objects.Slot) { slot.Seen -= uint64(d) })
}

func (w *world) ageAll(t *testing.T, change func(*objects.Slot)) {
	t.Helper()
	aged := make(map[uint32]objects.Slot)
	succeed(t, w.objects.Slots.Each(func(index uint32, slot objects.Slot) bool {
		change(&slot)
		aged[index] = slot
		return true
	}))
	for index, slot := range aged {
		succeed(t, w.objects.Slots.Map.Put(index, slot))
	}
}

// inState fails the test unless there is one connection, in a state.
func (w *world) inState(t *testing.T, want flows.State) {
	t.Helper()
	list, err := w.Connections()
	if err != nil || len(list) != 1 || list[0].State != want || list[0].Protocol != service.Protocol(w.proto) {
		t.Fatalf("connections %v, %v; want one in state %v", list, err, want)
	}
}
