// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
)

// BenchmarkProgram measures the time of one packet of an open connection, less that of an empty program.
func BenchmarkProgram(b *testing.B) {
	empty := emptyProgram(b)
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
			w.guard(b, frame)
			nothing := perRun(b, empty, frame)
			ours := perRun(b, with.loaded(b, c.hook), frame)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ours-nothing, "ns/packet")
			b.ReportMetric(nothing, "ns/empty")
		})
	}
}

// guard makes the device of test packets that of the pod that sends a frame, and lets the guard check it. Programs send packets to
// other pods from its MAC address, so that the next run finds it there.
func (w *world) guard(b *testing.B, frame []byte) {
	b.Helper()
	source := netip.AddrFrom4([4]byte(frame[26:30]))
	if w.v6 {
		source = netip.AddrFrom16([16]byte(frame[22:38]))
	}
	for row, err := range w.objects.Endpoints.All() {
		if err != nil {
			b.Fatal(err)
		}
		copy(row.Value.Path.NodeMac[:], frame[6:12])
		if row.Key == rows.EncodeAddr(source) {
			row.Value.Path.Ifindex, row.Value.Netns = 1, ownCookie(b)
			copy(row.Value.Path.PodMac[:], frame[6:12])
		}
		succeed(b, w.objects.Endpoints.Put(row.Key, row.Value))
	}
	for _, netns := range []uint64{0, ownCookie(b)} {
		succeed(b, w.objects.Senders.Delete(objects.SenderKey{Netns: netns, Ifindex: 1}))
	}
	b.Cleanup(func() { w.sendAnything(b) })
	succeed(b, w.objects.Filter.Change())
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
		_, d := must2(p.Benchmark(frame, repeat, func() {}))(b)
		best = min(best, d)
	}
	return float64(best.Nanoseconds())
}

// pingPong stores two connections, each of which translates to the tuple of the other: the kernel runs the program on the
// same packet again and again, and each run must translate.
func (w *world) pingPong(b *testing.B, s objects.AttachPoint) {
	b.Helper()
	w.endpoint(b, pod{1, s, "0a", "s"}, w.service.Addr())
	there := objects.Tuple{Saddr: rows.EncodeAddr(w.client.Addr()), Sport: rows.SwapPort(w.client.Port()),
		Daddr: rows.EncodeAddr(w.service.Addr()), Dport: rows.SwapPort(w.service.Port()), Proto: w.proto}
	back := there
	back.Daddr = rows.EncodeAddr(w.other.Addr())
	w.endpoint(b, pod{1, s, "0a", "s"}, w.other.Addr())
	flags := uint32(objects.ConnectionForward)
	if s == objects.AttachPod {
		flags |= 4
	}
	succeed(b, w.objects.Filter.Add([]objects.ServiceKey{
		rows.ServiceKey(w.service, service.Protocol(w.proto)), rows.ServiceKey(w.other, service.Protocol(w.proto)),
		rows.ServiceKey(w.backendPort(), service.Protocol(w.proto)),
	}))
	for from, to := range map[objects.Tuple]objects.Tuple{there: back, back: there} {
		w.connect(b, from, to, flags)
	}
}

func median[T cmp.Ordered](all []T) T {
	slices.Sort(all)
	return all[len(all)/2]
}
