// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// BenchmarkProgram measures the time of one packet of an open connection, less that of an empty program.
func BenchmarkProgram(b *testing.B) {
	empty, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
		License:      "Dual BSD/GPL",
	})
	if err != nil {
		b.Fatal(err)
	}
	defer empty.Close()
	with := newBench(b)
	for _, c := range []struct {
		name  string
		v6    bool
		proto uint8
		hook  objects.Hook
		own   objects.AttachPoint
		to    func(*world) packet
	}{
		{"cluster-ip/tcp4", false, protoTCP, fromHost, objects.AttachHost, toService},
		{"cluster-ip/tcp6", true, protoTCP, fromHost, objects.AttachHost, toService},
		{"cluster-ip/udp4", false, protoUDP, fromHost, objects.AttachHost, toService},
		{"cluster-ip/tcp4/own-device", false, protoTCP, fromOwn, objects.AttachPod, toService},
		{"pod-ip/tcp4", false, protoTCP, fromHost, objects.AttachHost, toPod},
		{"pod-ip/tcp6", true, protoTCP, fromHost, objects.AttachHost, toPod},
		{"pod-ip/udp4", false, protoUDP, fromHost, objects.AttachHost, toPod},
		{"pod-ip/tcp4/own-device", false, protoTCP, fromOwn, objects.AttachPod, toPod},
		{"into-pod/tcp4", false, protoTCP, toOwn, objects.AttachPod, toPod},
		{"backend/tcp4", false, protoTCP, fromHost, objects.AttachHost, toBackend},
		{"backend/tcp4/own-device", false, protoTCP, fromOwn, objects.AttachPod, toBackend},
		{"backend/udp4/own-device", false, protoUDP, fromOwn, objects.AttachPod, toBackend},
		{"backend-reply/tcp4/own-device", false, protoTCP, fromOwn, objects.AttachPod, fromBackend},
		{"backend-reply/tcp4/into-pod", false, protoTCP, toOwn, objects.AttachPod, fromBackend},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := newWorld(with, c.v6, c.proto)
			w.reset(b, c.own)
			frame := c.to(w).frame()
			w.pingPong(b, c.own)
			nothing := perRun(b, empty, frame)
			ours := perRun(b, with.loaded(b, c.hook), frame)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ours-nothing, "ns/packet")
			b.ReportMetric(nothing, "ns/empty")
		})
	}
}

func toService(w *world) packet { return w.next(w.client, w.service) }

func toPod(w *world) packet {
	return w.next(w.client, w.backend).with(func(p *packet) { p.ethDst = "0a" })
}

// backendPort is a port of the pod whose bit in the filter is set, as that of a service's backend is.
func (w *world) backendPort() netip.AddrPort { return netip.AddrPortFrom(w.backend.Addr(), 5201) }

// toBackend returns a packet to the port that no service translates.
func toBackend(w *world) packet {
	return w.next(w.client, w.backendPort()).with(func(p *packet) { p.ethDst = "0a" })
}

func fromBackend(w *world) packet {
	return w.next(w.backendPort(), w.client).with(func(p *packet) { p.ethDst = "0c" })
}

// perRun returns the ns of one run: the fastest of several rounds, as other processes share the machine.
func perRun(b *testing.B, p *ebpf.Program, frame []byte) float64 {
	const repeat = 10_000
	best := time.Duration(1 << 62)
	for range 200 {
		_, d, err := p.Benchmark(frame, repeat, func() {})
		if err != nil {
			b.Fatal(err)
		}
		best = min(best, d)
	}
	return float64(best.Nanoseconds())
}

// pingPong stores two connections, each of which translates to the tuple of the other: the kernel runs the program on the
// same packet again and again, and each run must translate.
func (w *world) pingPong(b *testing.B, s objects.AttachPoint) {
	b.Helper()
	w.endpoint(b, pod{1, s, "0a", "s"}, w.service.Addr())
	there := objects.Tuple{Saddr: encodeAddr(w.client.Addr()), Sport: swapPort(w.client.Port()),
		Daddr: encodeAddr(w.service.Addr()), Dport: swapPort(w.service.Port()), Proto: w.proto}
	back := there
	back.Daddr = encodeAddr(w.other.Addr())
	w.endpoint(b, pod{1, s, "0a", "s"}, w.other.Addr())
	flags := uint32(objects.ConnectionForward)
	if s == objects.AttachPod {
		flags |= 4
	}
	if err := w.objects.Filter.Add([]objects.ServiceKey{
		serviceKey(w.service, service.Protocol(w.proto)), serviceKey(w.other, service.Protocol(w.proto)),
		serviceKey(w.backendPort(), service.Protocol(w.proto)),
	}); err != nil {
		b.Fatal(err)
	}
	for from, to := range map[objects.Tuple]objects.Tuple{there: back, back: there} {
		w.connect(b, from, to, flags)
	}
}

// BenchmarkConnection measures the time of all packets of a short connection, less that of an empty program: SYN, SYN-ACK,
// ACK, request, answer, and FIN from both ends with its ACK. The table has the default size, and is full of ended
// connections.
func BenchmarkConnection(b *testing.B) {
	with := benchOn(b, openSized(b, Options{Root: testkit.BPFFS(b) + "/root"}))
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	empty, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
		License:      "Dual BSD/GPL",
	})
	if err != nil {
		b.Fatal(err)
	}
	defer empty.Close()
	for _, c := range []struct {
		name string
		to   func(*world) netip.AddrPort
	}{
		{"cluster-ip", func(w *world) netip.AddrPort { return w.service }},
		{"pod-ip", func(w *world) netip.AddrPort { return w.backend }},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := newWorld(with, false, protoTCP)
			w.reset(b, objects.AttachHost)
			w.serve(b, w.service, netip.AddrPortFrom(w.backend.Addr(), 8081))
			if c.name == "cluster-ip" {
				w.connections(b, with.loaded(b, fromHost), 70_000, w.service)
			}
			to := c.to(w)
			nothing := w.connections(b, empty, 20_000, to)
			ours := w.connections(b, with.loaded(b, fromHost), 20_000, to)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ours-nothing, "ns/connection")
			b.ReportMetric(nothing, "ns/empty")
		})
	}
}

// connections runs a program on the packets of n connections, and returns its mean time for one.
func (w *world) connections(b *testing.B, p *ebpf.Program, n int, to netip.AddrPort) float64 {
	b.Helper()
	server := netip.AddrPortFrom(w.backend.Addr(), 8081)
	if to == w.backend {
		server = to
	}
	before, err := p.Stats()
	if err != nil {
		b.Fatal(err)
	}
	for i := range n {
		client := netip.AddrPortFrom(w.client.Addr(), uint16(10000+(w.opened+i)%50000))
		there, back := w.next(client, to), w.next(server, client)
		for _, step := range []struct {
			packet packet
			flags  uint8
		}{
			{there, flagSYN}, {back, flagSYN | flagACK}, {there, flagACK}, {there, flagACK}, {back, flagACK},
			{there, flagFIN | flagACK}, {back, flagFIN | flagACK}, {there, flagACK},
		} {
			step.packet.flags = step.flags
			if _, _, err := p.Test(step.packet.frame()); err != nil {
				b.Fatal(err)
			}
		}
	}
	w.opened += n
	after, err := p.Stats()
	if err != nil {
		b.Fatal(err)
	}
	return float64((after.Runtime - before.Runtime).Nanoseconds()) / float64(n)
}
