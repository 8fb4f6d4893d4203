// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"mustang/internal/datapath/objects"
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

func toPod(w *world) packet { return w.next(w.client, w.backend) }

// perRun returns the ns of one run: the fastest of several rounds, as other processes share the machine.
func perRun(b *testing.B, p *ebpf.Program, frame []byte) float64 {
	const repeat = 200_000
	best := time.Duration(1 << 62)
	for range 8 {
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
	for from, to := range map[objects.Tuple]objects.Tuple{there: back, back: there} {
		if err := w.objects.Connections.Put(from, objects.Connection{To: to, AddrDiff: 1, Service: 1, Flags: flags}); err != nil {
			b.Fatal(err)
		}
	}
}
