// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// connectionSteps are the packets of a short connection.
var connectionSteps = []struct {
	name  string
	back  bool
	flags uint8
}{
	{"syn", false, flagSYN},
	{"syn-ack", true, flagSYN | flagACK},
	{"ack", false, flagACK},
	{"request", false, flagACK | flagPSH},
	{"answer", true, flagACK | flagPSH},
	{"fin", false, flagFIN | flagACK},
	{"fin-back", true, flagFIN | flagACK},
	{"last-ack", false, flagACK},
}

// BenchmarkConnection measures the time of all packets of a short connection, and of each, less that of an empty program. The
// table has the default size, and is empty at first, or full of ended connections.
func BenchmarkConnection(b *testing.B) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	for _, c := range []struct {
		name     string
		protocol service.Protocol
		full     bool
		to       func(*world) netip.AddrPort
	}{
		{"cluster-ip", service.TCP, false, func(w *world) netip.AddrPort { return w.service }},
		{"cluster-ip/any", service.Any, false, func(w *world) netip.AddrPort { return w.service }},
		{"cluster-ip/full", service.TCP, true, func(w *world) netip.AddrPort { return w.service }},
		{"pod-ip", service.TCP, false, func(w *world) netip.AddrPort { return w.backend }},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := newWorld(benchOn(b, openSized(b, Options{Root: testkit.BPFFS(b) + "/root"})), false, protoTCP)
			w.reset(b, objects.AttachHost)
			w.put(b, c.protocol, w.service, netip.AddrPortFrom(w.backend.Addr(), 8081))
			to := c.to(w)
			if c.full {
				w.fill(b, w.loaded(b, fromHost), to)
			}
			empty := emptyProgram(b)
			nothing := w.connections(b, empty, to)
			b.ReportMetric(0, "ns/op")
			total := 0.0
			for i, ns := range w.connections(b, w.loaded(b, fromHost), to) {
				total += ns - nothing[i]
				b.ReportMetric(ns-nothing[i], "ns/"+connectionSteps[i].name)
			}
			b.ReportMetric(total, "ns/connection")
		})
	}
}

// emptyProgram returns a program that does nothing.
func emptyProgram(b *testing.B) *ebpf.Program {
	b.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
		License:      "Dual BSD/GPL",
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = p.Close() })
	return p
}

// fill opens and ends more connections than the table has slots.
func (w *world) fill(b *testing.B, p *ebpf.Program, to netip.AddrPort) {
	b.Helper()
	for range 2 * int(w.objects.Slots.Len()) {
		w.shortConnection(b, p, to, func(int) {})
	}
}

// shortConnection runs a program on the packets of a connection, and calls a function after each.
func (w *world) shortConnection(b *testing.B, p *ebpf.Program, to netip.AddrPort, after func(step int)) {
	b.Helper()
	server := netip.AddrPortFrom(w.backend.Addr(), 8081)
	if to == w.backend {
		server = to
	}
	client := netip.AddrPortFrom(w.client.Addr(), uint16(10000+w.opened%50000))
	w.opened++
	there, back := w.next(client, to), w.next(server, client)
	for i, step := range connectionSteps {
		packet := there
		if step.back {
			packet = back
		}
		packet.flags, packet.ack = step.flags, 1 // what acknowledges the SYN-ACK, whose number is 0
		if _, _, err := p.Test(packet.frame()); err != nil {
			b.Fatal(err)
		}
		after(i)
	}
}

// connections returns the time in ns that a program takes for each packet of a connection: the median of several rounds, as
// other processes share the machine.
func (w *world) connections(b *testing.B, p *ebpf.Program, to netip.AddrPort) []float64 {
	b.Helper()
	const rounds, each = 40, 500
	steps := make([][]float64, len(connectionSteps))
	last := runTime(b, p)
	for range rounds {
		sums := make([]float64, len(steps))
		for range each {
			w.shortConnection(b, p, to, func(step int) {
				now := runTime(b, p)
				sums[step] += now - last
				last = now
			})
		}
		for i, sum := range sums {
			steps[i] = append(steps[i], sum/each)
		}
	}
	medians := make([]float64, len(steps))
	for i, step := range steps {
		slices.Sort(step)
		medians[i] = step[rounds/2]
	}
	return medians
}

// runTime returns the time in ns that a program has run.
func runTime(b *testing.B, p *ebpf.Program) float64 {
	b.Helper()
	stats, err := p.Stats()
	if err != nil {
		b.Fatal(err)
	}
	return float64(stats.Runtime.Nanoseconds())
}

// BenchmarkPortSearch measures the time of a client's datagram that finds no free source port, less that of an empty program.
func BenchmarkPortSearch(b *testing.B) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	sizes := objects.Sizes{Connections: 1 << 18, Services: 8, Backends: 8, Endpoints: 8}
	w := newWorld(benchOn(b, openSized(b, Options{Root: testkit.BPFFS(b) + "/root", Sizes: sizes})), false, protoUDP)
	w.put(b, service.UDP, w.service, w.backend)
	w.takePorts(b)
	frame := w.next(w.client, w.service).frame()
	const datagrams = 2000
	measure := func(p *ebpf.Program) float64 {
		before := runTime(b, p)
		for range datagrams {
			if _, _, err := p.Test(frame); err != nil {
				b.Fatal(err)
			}
		}
		return (runTime(b, p) - before) / datagrams
	}
	nothing := measure(emptyProgram(b))
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(measure(w.loaded(b, fromHost))-nothing, "ns/datagram")
}

// BenchmarkFirstPacket measures the time of the first packet to services at random, less that of an empty program: among few, and
// among so many that their rows are not in the processor's caches.
func BenchmarkFirstPacket(b *testing.B) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	for _, n := range []int{10, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := newWorld(benchOn(b, openSized(b, Options{Root: testkit.BPFFS(b) + "/root"})), false, protoTCP)
			w.reset(b, objects.AttachHost)
			services := manyServices(n, 0)
			for i := range services {
				services[i].Backends = service.Backends(w.backend, netip.AddrPortFrom(w.backend.Addr(), 8081))
			}
			if _, err := w.Services().Apply(b.Context(), service.Agent, services); err != nil {
				b.Fatal(err)
			}
			measure := func(p *ebpf.Program) float64 {
				const packets = 40_000
				random := rand.New(rand.NewPCG(1, 2))
				before := runTime(b, p)
				for range packets {
					client := netip.AddrPortFrom(w.client.Addr(), uint16(10000+w.opened%50000))
					w.opened++
					packet := w.next(client, services[random.IntN(n)].Frontend)
					packet.flags = flagSYN
					if _, _, err := p.Test(packet.frame()); err != nil {
						b.Fatal(err)
					}
				}
				return (runTime(b, p) - before) / packets
			}
			nothing := measure(emptyProgram(b))
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(measure(w.loaded(b, fromHost))-nothing, "ns/packet")
		})
	}
}
