// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/datapath/rows"
	"mustang/internal/netns"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// BenchmarkAddresses measures the kernel's cost of more addresses: the time of connects to 10,000 random addresses of
// a pod, as a ratio to connects to ten of them, without any service. The figures are medians over rounds of 2,000
// connects each, in which turns of both alternate without a pause.
func BenchmarkAddresses(b *testing.B) {
	const few, many, rounds, turns, connects = 10, 10_000, 100, 44, 45
	n := routed(b)
	n.run(b, `
		-n PODA route add local 10.200.0.0/16 dev lo
		-n HOST route add 10.200.0.0/16 via `+podA4)
	server := place{ns: n.pods[0]}.open(b, false, unix.SOCK_STREAM).fd
	succeed(b, errors.Join(unix.Bind(server, &unix.SockaddrInet4{Port: 5201}), unix.Listen(server, 128)))
	var medians, tails []float64
	succeed(b, n.pods[1].Do(func() error {
		for range rounds {
			took := map[int][]time.Duration{}
			for turn := range turns {
				order := []int{few, many}
				if turn%2 == 1 {
					slices.Reverse(order)
				}
				for _, addresses := range order {
					for range connects {
						d, err := connectTo(server, rand.IntN(addresses))
						if err != nil {
							return err
						}
						took[addresses] = append(took[addresses], d)
					}
				}
			}
			slices.Sort(took[few])
			slices.Sort(took[many])
			ratio := func(percent int) float64 {
				i := len(took[few]) * percent / 100
				return float64(took[many][i]) / float64(took[few][i])
			}
			medians, tails = append(medians, ratio(50)), append(tails, ratio(99))
		}
		return nil
	}))
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(medians), "p50-ratio")
	b.ReportMetric(median(tails), "p99-ratio")
}

// connectTo connects to the address with a number, and returns how long that took. The server resets the connection.
func connectTo(server, i int) (time.Duration, error) {
	client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(client)
	to := unix.SockaddrInet4{Port: 5201, Addr: [4]byte{10, 200, byte(i / 250), byte(1 + i%250)}}
	began := time.Now()
	if err := unix.Connect(client, &to); err != nil {
		return 0, err
	}
	took := time.Since(began)
	accepted, _, err := unix.Accept(server)
	if err != nil {
		return 0, err
	}
	err = unix.SetsockoptLinger(accepted, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	return took, cmp.Or(err, unix.Close(accepted))
}

// BenchmarkProgram measures the time of one packet of an open connection, minus the time of an empty program.
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

// guard makes the device of test packets the device of the pod that sends a frame, and lets the guard check it.
// Programs send packets to other pods from its MAC address, so that the next run finds it there.
func (w *world) guard(b *testing.B, frame []byte) {
	b.Helper()
	source := netip.AddrFrom4([4]byte(frame[26:30]))
	if w.v6 {
		source = netip.AddrFrom16([16]byte(frame[22:38]))
	}
	for row, err := range w.objects.Endpoints.All() {
		succeed(b, err)
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
	succeed(b, w.objects.NodeState.Invalidate())
}

func toService(w *world) packet { return w.next(w.client, w.service) }

func toPod(w *world) packet {
	return w.next(w.client, w.backend).with(func(p *packet) { p.ethDst = "0a" })
}

// backendPort is a port of the pod whose bit in the filter is set, like the bit of a service's backend.
func (w *world) backendPort() netip.AddrPort { return netip.AddrPortFrom(w.backend.Addr(), 5201) }

// toBackend returns a packet to the backend's own port, which no service translates.
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

// pingPong stores two connections; each translates to the tuple of the other. The kernel runs the program on the same
// packet again and again, and each run must translate.
func (w *world) pingPong(b *testing.B, s objects.AttachPoint) {
	b.Helper()
	w.endpoint(b, pod{1, s, "0a", "s"}, w.service.Addr())
	there := w.tuple(w.client, w.service)
	back := there
	back.Daddr = rows.EncodeAddr(w.other.Addr())
	w.endpoint(b, pod{1, s, "0a", "s"}, w.other.Addr())
	flags := uint32(objects.ConnectionForward)
	if s == objects.AttachPod {
		flags |= 4
	}
	succeed(b, w.objects.NodeState.AddFrontends([]objects.ServiceKey{
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

// BenchmarkPoliced measures the time of one packet of an open connection that a policy has allowed, by the number of
// the policy's rules, minus the time of an empty program.
func BenchmarkPoliced(b *testing.B) {
	empty := emptyProgram(b)
	with := newBench(b)
	for _, rules := range []int{0, 1, 10_000} {
		b.Run(fmt.Sprint(rules), func(b *testing.B) {
			w := newWorld(with, false, protoTCP)
			w.reset(b, objects.AttachHost)
			frame := toPod(w).frame()
			w.guard(b, frame)
			handle := policiesOf(w.objects)
			must(handle.Apply(b.Context(), service.CLI, policies.Set{Snapshot: allowing(w, rules)}))(b)
			before := counts(b, w.Datapath)
			program := with.loaded(b, fromHost)
			nothing, ours := perRun(b, empty, frame), perRun(b, program, frame)
			tracked := delta(b, w.Datapath, before)["tracked"]
			failIf(b, tracked > 0 != (rules > 0), "%d connections were judged", tracked)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ours-nothing, "ns/packet")
			must(handle.Apply(b.Context(), service.CLI, policies.Set{}))(b)
		})
	}
}

// allowing returns a policy whose last rule allows the client's packets to the backend.
func allowing(w *world, rules int) policy.Snapshot {
	if rules == 0 {
		return policy.Snapshot{}
	}
	p := policy.Policy{Tier: policy.Namespaced, Namespace: "default", Name: "allowing", IsolatesIngress: true}
	p.Subject.Pods.Labels = map[string]string{"app": "backend"}
	for i := range rules {
		from := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16 + byte(i>>8), byte(i), 0}), 24)
		if i == rules-1 {
			from = netip.PrefixFrom(w.client.Addr(), 32)
		}
		p.Ingress = append(p.Ingress, policy.Rule{
			Peers: []policy.Peer{{Block: &policy.Block{CIDR: from}}},
			Ports: []policy.Port{{Protocol: service.TCP, First: w.backend.Port(), Last: w.backend.Port()}},
		})
	}
	return policy.Snapshot{Policies: []policy.Policy{p}, Pods: []policy.Pod{
		{Namespace: "default", Name: "backend", Labels: p.Subject.Pods.Labels, Addresses: []netip.Addr{w.backend.Addr()}},
	}}
}

// BenchmarkOuterGuard measures the cost of the source guard at the parent. The figure is the CPU time of a request
// and its response over UDP between a macvlan pod and a machine on the network of the parent, as a ratio of with to
// without the programs there. One thread has both ends, so only their work counts. Turns of both alternate in the
// order on, off, off, on. The figures are the median of these fours and its 95 % interval, and the same for two
// halves of turns that do not differ. Between two pods nothing runs.
func BenchmarkOuterGuard(b *testing.B) {
	const fours, requests = 250, 1000
	n, d := slaves(b), openTest(b)
	n.attachBoth(b, d)
	outside := testkit.Namespace(b, "outside")
	n.run(b, `
		-n HOST link set up1 netns `+outside.Name()+`
		up `+outside.Name()+` up1 192.168.77.77/24
		-n `+outside.Name()+` route add 192.168.10.0/24 dev up1
		-n PODB route add 192.168.77.77 dev eth0`)
	far := newPair(b, n.pods[1], outside, [4]byte{192, 168, 77, 77})
	near := newPair(b, n.pods[1], n.pods[0], [4]byte{192, 168, 10, 10})
	before := counts(b, d)
	near.turn(b, requests)
	if runs := delta(b, d, before)["outer_guard"]; runs > requests/10 { // announcements go to all devices
		b.Errorf("%d packets between two pods passed the parent's program", runs)
	}
	at := must(findTarget(n.attachment(1)))(b)
	defer at.Close()
	set := func(on bool) {
		if on {
			succeed(b, at.attachOuter(d.objects))
			return
		}
		for _, k := range at.outer() {
			succeed(b, d.objects.Detach(k))
		}
	}
	before = counts(b, d)
	far.turn(b, requests)
	runs := delta(b, d, before)["outer_guard"]
	testkit.Require(b, runs >= requests, "the program at the parent ran %d times for %d requests", runs, requests)
	var ratios, same []float64
	for range fours {
		var took [4]float64
		for i, on := range []bool{true, false, false, true} {
			if i != 2 {
				set(on)
			}
			took[i] = float64(far.turn(b, requests))
		}
		ratios = append(ratios, math.Sqrt(took[0]*took[3]/(took[1]*took[2])))
		same = append(same, math.Sqrt(took[0]*took[1]/(took[2]*took[3])))
	}
	b.ReportMetric(0, "ns/op")
	for name, all := range map[string][]float64{"on/off": ratios, "same": same} {
		slices.Sort(all)
		margin := int(math.Round(0.98 * math.Sqrt(float64(len(all))))) // 1.96 standard deviations of a binomial
		b.ReportMetric(median(all), name)
		b.ReportMetric(all[len(all)/2-margin], name+"-low")
		b.ReportMetric(all[len(all)/2+margin], name+"-high")
	}
}

// pair is a client's connected socket and a server's.
type pair struct {
	client, server int
	back           unix.Sockaddr // of the client
}

func newPair(b *testing.B, client, server *netns.Namespace, addr [4]byte) *pair {
	b.Helper()
	open := func(ns *netns.Namespace) int { return place{ns: ns}.open(b, false, unix.SOCK_DGRAM).fd }
	p, to := &pair{server: open(server), client: open(client)}, &unix.SockaddrInet4{Port: 4444, Addr: addr}
	succeed(b, errors.Join(unix.Bind(p.server, to), unix.Connect(p.client, to)))
	return p
}

// turn sends requests with their responses, and returns the CPU time of this thread.
func (p *pair) turn(b *testing.B, requests int) time.Duration {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var begin, end unix.Timespec
	var buffer [16]byte
	succeed(b, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &begin))
	for range requests {
		_, err := unix.Write(p.client, buffer[:1])
		if err == nil {
			_, p.back, err = unix.Recvfrom(p.server, buffer[:], 0)
		}
		if err == nil {
			err = unix.Sendto(p.server, buffer[:1], 0, p.back)
		}
		if err == nil {
			_, err = unix.Read(p.client, buffer[:])
		}
		succeed(b, err)
	}
	succeed(b, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &end))
	return time.Duration(end.Nano() - begin.Nano())
}
