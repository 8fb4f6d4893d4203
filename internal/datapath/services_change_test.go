// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/lock"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestChange makes random changes of services of one owner, while another process does the same for another owner.
// The services must match each change's result, and nothing of the replaced services remains.
func TestChange(t *testing.T) {
	d := openTest(t)
	var all []service.Service
	var owners sync.WaitGroup
	var mu sync.Mutex
	for i, owner := range []service.Owner{service.Agent, service.CLI} {
		owners.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			want := map[service.Key]service.Service{}
			for range 60 {
				put, remove := randomChange(random, i, want)
				if _, err := d.Services().Change(t.Context(), owner, put, remove); err != nil {
					t.Error(err)
					return
				}
				for _, key := range remove {
					delete(want, key)
				}
				for _, s := range put {
					want[s.Key()] = s
				}
			}
			mu.Lock()
			all = append(all, slices.Collect(maps.Values(want))...)
			mu.Unlock()
		})
	}
	owners.Wait()
	have := rowsOf(t, d)
	failIf(t, len(have) != len(all), "%d services, want %d", len(have), len(all))
	for _, s := range all {
		found, ok := have[s.Key()]
		testkit.Check(t, ok && found.Equal(s), "%s is %+v, want %+v", s, found, s)
	}
	wantClean(t, d)
}

// randomChange puts and removes some services of 20 frontends, at addresses that owners share. A frontend may change
// its protocol, and some stay as they are.
func randomChange(random *rand.Rand, owner int, have map[service.Key]service.Service) (put []service.Service,
	remove []service.Key) {
	for i := range 20 {
		if random.IntN(3) > 0 {
			continue
		}
		frontend := fmt.Sprintf("10.96.0.%d:%d", i, 80+owner)
		for key := range have {
			if key.Frontend.String() == frontend {
				remove = append(remove, key)
			}
		}
		if random.IntN(4) == 0 {
			continue
		}
		protocol := []service.Protocol{service.TCP, service.UDP, service.Any}[random.IntN(3)]
		var backends []string
		for range random.IntN(4) {
			backends = append(backends, fmt.Sprintf("192.168.10.%d:8080", 10+len(backends)))
		}
		s := newService(protocol, frontend, backends...)
		remove = slices.DeleteFunc(remove, func(k service.Key) bool { return k == s.Key() })
		put = append(put, s)
	}
	return put, remove
}

func trafficOf(t *testing.T, d *Datapath, frontend netip.AddrPort, p service.Protocol) flows.ServiceTraffic {
	t.Helper()
	s := must(d.Services().Get(t.Context(), service.Key{Frontend: frontend, Protocol: p}))(t)
	return must(d.Flows().ServiceTraffic())(t)[s.ID]
}

// wantAllCounted compares the counts of all existing services with the counts of all packets.
func wantAllCounted(t *testing.T, d *Datapath) {
	t.Helper()
	want := settled(t, d)
	var to, back uint64
	for _, traffic := range must(d.Flows().ServiceTraffic())(t) {
		to, back = to+traffic.To.Packets, back+traffic.Back.Packets
	}
	testkit.Check(t, to != 0 && to == want["forward"] && back == want["reverse"],
		"packets of services: %d to backends, %d back; of all: %d, %d", to, back, want["forward"], want["reverse"])
}

// TestServiceTraffic counts the packets of two services that share a backend. A change of a service's backends goes on
// with the count.
func TestServiceTraffic(t *testing.T) {
	w := pods(t, false, protoTCP)
	w.serve(t, w.service, w.backend)
	w.serve(t, w.other, w.backend)
	want := map[netip.AddrPort]*flows.ServiceTraffic{w.service: {}, w.other: {}}
	send := func(from, to netip.AddrPort, first bool, service netip.AddrPort) {
		t.Helper()
		p := w.next(from, to)
		if first {
			p = w.first(from, to)
		}
		w.send(t, fromHost, p)
		side := &want[service].To
		if from == w.backend {
			side = &want[service].Back
		}
		*side = Traffic{Packets: side.Packets + 1, Bytes: side.Bytes + uint64(len(p.frame()))}
	}
	check := func(when string) {
		t.Helper()
		for frontend, want := range want {
			equal(t, trafficOf(t, w.Datapath, frontend, service.TCP), *want, "%s: %s", when, frontend)
		}
	}
	client2 := netip.AddrPortFrom(w.client.Addr(), w.client.Port()+1)
	send(w.client, w.service, true, w.service)
	send(client2, w.other, true, w.other)
	check("SYN")
	for range 7 {
		send(w.client, w.service, false, w.service)
		send(w.backend, w.client, false, w.service)
		send(w.backend, client2, false, w.other)
	}
	check("connections")
	w.serve(t, w.service, w.backend, w.remote)
	send(w.client, w.service, false, w.service)
	check("after a change")
	succeed(t, w.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: w.service, Protocol: service.TCP}))
	w.serve(t, w.service, w.backend)
	*want[w.service] = flows.ServiceTraffic{}
	check("made anew")
}

// TestNumbers gives out ids until the rows of counts are used again: no two services have one, and each begins with
// zero.
func TestNumbers(t *testing.T) {
	w := pods(t, false, protoTCP)
	put := func(port uint16) uint32 {
		t.Helper()
		return w.serve(t, netip.AddrPortFrom(netip.MustParseAddr("10.96.7.7"), port), w.backend)
	}
	const services = 10
	first := make([]uint32, services)
	for i := range first {
		first[i] = put(uint16(i + 1))
	}
	gone := netip.AddrPortFrom(netip.MustParseAddr("10.96.7.7"), services)
	w.send(t, fromHost, w.first(w.client, gone))
	traffic := trafficOf(t, w.Datapath, gone, service.TCP)
	testkit.Require(t, traffic.To.Packets == 1, "%+v, want a packet", traffic)
	succeed(t, w.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: gone, Protocol: service.TCP}))
	state := must(w.objects.NodeState.IDs())(t)
	state.LastService = first[0] - 1 + objects.CountedServices
	succeed(t, w.objects.NodeState.PutIDs(state))
	id, want := put(services+1), first[services-1]+objects.CountedServices
	failIf(t, id != want, "id %d, want %d", id, want)
	all, err := w.Flows().ServiceTraffic()
	failIf(t, err != nil || len(all) != services, "%d services: %v, want %d", len(all), err, services)
	for id, traffic := range all {
		failIf(t, traffic != (flows.ServiceTraffic{}), "service %d begins with %+v", id, traffic)
	}
}

// manyServices returns n services of two backends. Another variant has other backends.
func manyServices(n, variant int) []service.Service {
	all := make([]service.Service, n)
	for i := range all {
		addr := [4]byte{10}
		binary.BigEndian.PutUint16(addr[2:], uint16(i>>8))
		addr[1] = byte(i)
		backend := func(j int) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, byte(16 + j), byte(i >> 8), byte(i)}), uint16(8000+variant))
		}
		all[i] = service.Service{
			Frontend: netip.AddrPortFrom(netip.AddrFrom4(addr), 80), Protocol: service.TCP,
			Backends: service.Backends(backend(0), backend(1)),
		}
	}
	return all
}

// BenchmarkApply applies 100,000 services of two backends, applies them once more, and changes 10,000 of them, while
// another process adds and deletes an endpoint's row all the time.
func BenchmarkApply(b *testing.B) {
	const services, changed = 100_000, 10_000
	d := openFresh(b, objects.Sizes{Connections: 1 << 16})
	first, second := manyServices(services, 0), manyServices(services, 0)
	copy(second, manyServices(changed, 1))
	waits := contend(b, d)
	var spent [4]time.Duration
	for b.Loop() {
		for i, step := range []struct {
			want   []service.Service
			result Result
		}{
			{first, Result{Added: services, RowsWritten: 3 * services}},
			{first, Result{Unchanged: services}},
			{second, Result{Updated: changed, Unchanged: services - changed, RowsWritten: 3 * changed,
				RowsDeleted: 2 * changed}},
			{nil, Result{Deleted: services, RowsDeleted: 3 * services}},
		} {
			begin := time.Now()
			result, err := d.Services().Apply(b.Context(), service.Agent, step.want)
			spent[i] += time.Since(begin)
			testkit.Require(b, err == nil && result == step.result, "step %d: %+v, %v; want %+v", i, result, err, step.result)
		}
	}
	for i, unit := range []string{"apply-s", "unchanged-s", "changed-s", "delete-s"} {
		b.ReportMetric(spent[i].Seconds()/float64(b.N), unit)
	}
	longest, p99, count := waits()
	b.ReportMetric(float64(longest.Microseconds())/1000, "max-lock-wait-ms")
	b.ReportMetric(float64(p99.Microseconds())/1000, "p99-lock-wait-ms")
	b.ReportMetric(float64(count)/float64(b.N), "lock-waits/op")
}

// contenderVariable makes the test binary a process that contends for the lock of the root.
const contenderVariable = "MUSTANG_DATAPATH_CONTENDER"

// contend starts a process that adds and deletes an endpoint's row until the returned function is called. That
// function returns the longest wait for the lock, the 99th percentile and the number of waits.
func contend(b *testing.B, d *Datapath) func() (longest, p99 time.Duration, count int) {
	b.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), contenderVariable+"="+d.objects.Root())
	cmd.Stderr = os.Stderr
	in := must(cmd.StdinPipe())(b)
	var out strings.Builder
	cmd.Stdout = &out
	succeed(b, cmd.Start())
	return func() (longest, p99 time.Duration, count int) {
		succeed(b, errors.Join(in.Close(), cmd.Wait()))
		must(fmt.Sscan(out.String(), &longest, &p99, &count))(b)
		return longest, p99, count
	}
}

// contender is the process. It ends with its standard input.
func contender(root string) int {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	d, err := OpenExisting(Options{Root: root})
	row := Endpoint{ID: 1, IP: netip.MustParseAddr("192.168.10.10"), Owner: service.CNI}
	var waits []time.Duration
	for err == nil && ctx.Err() == nil {
		begin := time.Now()
		var lock *lock.Lock
		if lock, err = d.objects.Lock(context.Background()); err != nil {
			break
		}
		waits = append(waits, time.Since(begin))
		err = d.Endpoints().write([]Endpoint{row})
		lock.Unlock()
		err = errors.Join(err, d.Endpoints().DeleteIP(context.Background(), row.IP))
		time.Sleep(time.Millisecond)
	}
	if slices.Sort(waits); len(waits) > 0 {
		fmt.Println(waits[len(waits)-1].Nanoseconds(), waits[len(waits)*99/100].Nanoseconds(), len(waits))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
