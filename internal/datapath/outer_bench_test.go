// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/guard"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// BenchmarkOuterGuard measures what the source guard at the parent takes: the CPU time of a request and its response over UDP between a
// macvlan pod and a machine on the network of the parent with the programs there, as a ratio to that without. One thread has both
// ends, so nothing else is in it. Turns of both follow each other in the order on, off, off, on; the figures are the median of
// these fours and its 95 % interval, and the same for two halves of turns that do not differ. Between two pods nothing runs.
func BenchmarkOuterGuard(b *testing.B) {
	const fours, requests = 250, 1000
	n, d := slaves(b), openTest(b)
	n.attachBoth(b, d)
	outside := testkit.Namespace(b, "outside")
	n.run(b, `
		-n HOST link set up1 netns `+outside.Name()+`
		-n `+outside.Name()+` addr add 192.168.77.77/24 dev up1
		-n `+outside.Name()+` link set up1 up
		-n `+outside.Name()+` route add 192.168.10.0/24 dev up1
		-n PODB route add 192.168.77.77 dev eth0`)
	far := newPair(b, n.pods[1], outside, [4]byte{192, 168, 77, 77})
	near := newPair(b, n.pods[1], n.pods[0], [4]byte{192, 168, 10, 10})
	before := counts(b, d)
	near.turn(b, requests)
	if runs := delta(b, d, before)["outer_guard"]; runs > requests/10 { // what announces them goes to all
		b.Errorf("%d packets between two pods passed the parent's program", runs)
	}
	at := must(findTarget(n.attachment(1)))(b)
	defer at.Close()
	set := func(on bool) {
		var err error
		if on {
			err = guard.Attach(d.objects, at.Device)
		} else {
			for _, k := range guard.Outer(at.Device) {
				err = errors.Join(err, d.objects.Detach(k))
			}
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	before = counts(b, d)
	far.turn(b, requests)
	if runs := delta(b, d, before)["outer_guard"]; runs < requests {
		b.Fatalf("the program at the parent ran %d times for %d requests", runs, requests)
	}
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
	p := &pair{}
	to := &unix.SockaddrInet4{Port: 4444, Addr: addr}
	open := func(fd *int, then func(int, unix.Sockaddr) error) func() error {
		return func() (err error) {
			if *fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
				return err
			}
			return errors.Join(then(*fd, to), unix.SetsockoptTimeval(*fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
		}
	}
	succeed(b, errors.Join(server.Do(open(&p.server, unix.Bind)), client.Do(open(&p.client, unix.Connect))))
	b.Cleanup(func() { _, _ = unix.Close(p.client), unix.Close(p.server) })
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
		if err != nil {
			b.Fatal(err)
		}
	}
	succeed(b, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &end))
	return time.Duration(end.Nano() - begin.Nano())
}
