// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/load"
	"mustang/internal/testkit"
)

// checkFlows checks that the figures are of so many flows, each of its own.
func checkFlows(t *testing.T, m load.Measurement, want int) {
	t.Helper()
	locals := slices.Clone(m.ClientLocals)
	slices.SortFunc(locals, netip.AddrPort.Compare)
	if m.Flows != want || len(slices.Compact(locals)) != want || len(m.ClientLocals) != want || m.ClientLocals[0] != m.ClientLocal {
		t.Errorf("figures of %d flows from %v, the first %v; want %d", m.Flows, m.ClientLocals, m.ClientLocal, want)
	}
	// The machine's time is counted once, not for each flow.
	if cpus := float64(runtime.NumCPU()); m.Machine.BusySeconds > m.Machine.Seconds*cpus+0.02 {
		t.Errorf("machine busy for %g s of %g on %g CPUs", m.Machine.BusySeconds, m.Machine.Seconds, cpus)
	}
}

// TestFlowsWindow runs streams over several flows in one window.
func TestFlowsWindow(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		p := newPair(t, host)
		for _, workload := range []string{load.TCPStream, load.UDPStream} {
			for _, flows := range []int{1, 3, load.MaxFlows} {
				t.Run(fmt.Sprintf("%s/%s/%d", host, workload, flows), func(t *testing.T) {
					spec := p.spec(workload)
					spec.Flows = flows
					if workload == load.UDPStream {
						spec.Rate = 200e6
					}
					m, err := p.client.Run(t.Context(), spec)
					if err != nil {
						t.Fatal(err)
					}
					checkFlows(t, m, flows)
					checkRate(t, m, "Gbit/s", float64(m.Count)*8/1e9)
					if m.Count == 0 || m.Seconds < 0.2 || m.ClientCPUSeconds <= 0 || m.ServerCPUSeconds <= 0 {
						t.Errorf("%d bytes in %g s, CPU %g and %g s", m.Count, m.Seconds, m.ClientCPUSeconds, m.ServerCPUSeconds)
					}
					if workload == load.UDPStream {
						checkDatagrams(t, m)
					}
					served, err := p.server.Last(t.Context())
					if err != nil || served.Count != m.Count || served.Flows != flows || served.Error != "" {
						t.Errorf("server's figures %+v, %v; client counts %d", served, err, m.Count)
					}
				})
			}
		}
	}
}

// TestFlowsLimit sends a known amount over several flows.
func TestFlowsLimit(t *testing.T) {
	p := newPair(t, "127.0.0.1")
	for _, tt := range []struct {
		name string
		spec load.Spec
	}{
		{"tcp", load.Spec{Workload: load.TCPStream, Flows: 3, Limit: 10_000_019}},
		{"tcp, one byte each or none", load.Spec{Workload: load.TCPStream, Flows: 8, Limit: 8}},
		{"udp", load.Spec{Workload: load.UDPStream, Flows: 3, Limit: 500}},
		{"udp, one each", load.Spec{Workload: load.UDPStream, Flows: 8, Limit: 8}},
		{"udp, paced", load.Spec{Workload: load.UDPStream, Flows: 4, Limit: 501, Rate: 1e9}},
		{"udp, settled", load.Spec{Workload: load.UDPStream, Flows: 4, Limit: 501, Settle: 6}},
		{"udp, window", load.Spec{Workload: load.UDPStream, Flows: 4, Limit: 501, Settle: 6, Window: 16}},
		{"udp, unconnected", load.Spec{Workload: load.UDPStream, Flows: 2, Limit: 101, Unconnected: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.spec.Target, tt.spec.Stall = p.server.Address(), 20*time.Second
			m, err := p.client.Run(t.Context(), tt.spec)
			if err != nil {
				t.Fatal(err)
			}
			want := tt.spec.Limit
			if tt.spec.Workload == load.UDPStream {
				want *= load.DefaultDatagram
				if m.Sent != tt.spec.Limit || m.Received != tt.spec.Limit || m.OutOfOrder != 0 || m.Overflowed != 0 {
					t.Errorf("sent %d, received %d of %d, %d out of order, %d overflowed", m.Sent, m.Received, tt.spec.Limit, m.OutOfOrder, m.Overflowed)
				}
			}
			if m.Count != want || len(m.ClientLocals) != tt.spec.Flows || m.Flows != tt.spec.Flows {
				t.Errorf("counted %d bytes of %d over %v", m.Count, want, m.ClientLocals)
			}
		})
	}
}

// TestFlowsRate offers a rate over one CPU that client and server share. All of it
// arrives in order, and it is never faster than the rate. So few datagrams fit into the
// queues on the way even if the server does not run at all.
func TestFlowsRate(t *testing.T) {
	testkit.RequireRoot(t)
	ns := testkit.Namespace(t, "load")
	o := agentOptions(ns)
	o.CPU = 0
	p := pair{ns: ns, client: startAgent(t, o), server: startAgent(t, o)}
	if err := p.server.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
		t.Fatal(err)
	}
	for _, flows := range []int{0, 3} {
		spec := p.spec(load.UDPStream)
		spec.Rate, spec.Flows = 20e6, flows
		m, err := p.client.Run(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if m.Received != m.Sent || m.Overflowed != 0 || m.OutOfOrder != 0 {
			t.Errorf("%d flows: sent %d, received %d, %d overflowed, %d out of order", flows, m.Sent, m.Received, m.Overflowed, m.OutOfOrder)
		}
		checkOffered(t, m, spec)
	}
}

// TestFlowsEnd ends a run of several flows from each side.
func TestFlowsEnd(t *testing.T) {
	for _, workload := range []string{load.TCPStream, load.UDPStream} {
		start := func(ctx context.Context, p pair) <-chan error {
			spec := p.spec(workload)
			spec.Duration, spec.Stall, spec.Flows = time.Hour, 2*time.Second, 5
			done := make(chan error, 1)
			go func() {
				_, err := p.client.Run(ctx, spec)
				done <- err
			}()
			awaitTraffic(t, p)
			return done
		}
		t.Run(workload+"/server dies", func(t *testing.T) {
			t.Parallel()
			p := newPair(t, "127.0.0.1")
			done := start(t.Context(), p)
			if err := p.server.Close(); err != nil {
				t.Fatal(err)
			}
			if err := awaitError(t, done); strings.Contains(err.Error(), errCancelled.Error()) {
				t.Errorf("error is %v", err)
			}
		})
		t.Run(workload+"/client dies", func(t *testing.T) {
			t.Parallel()
			p := newPair(t, "127.0.0.1")
			done := start(t.Context(), p)
			if err := p.client.Close(); err != nil {
				t.Fatal(err)
			}
			_ = awaitError(t, done)
			awaitServed(t, p, workload)
			p.client = startAgent(t, agentOptions(p.ns))
			spec := p.spec(workload)
			spec.Flows = 2
			if _, err := p.client.Run(t.Context(), spec); err != nil {
				t.Errorf("a second client: %v", err)
			}
		})
		t.Run(workload+"/cancel", func(t *testing.T) {
			t.Parallel()
			p := newPair(t, "127.0.0.1")
			ctx, cancel := context.WithCancel(t.Context())
			done := start(ctx, p)
			cancel()
			if err := awaitError(t, done); !errors.Is(err, context.Canceled) {
				t.Errorf("error is %v", err)
			}
			if _, err := p.client.Run(t.Context(), p.spec(workload)); err != nil {
				t.Errorf("the same client again: %v", err)
			}
		})
	}
}

// TestFlowsIncomplete connects fewer flows than the headers announce, and one too
// many: both end, and the server stays usable.
func TestFlowsIncomplete(t *testing.T) {
	p := newPair(t, "127.0.0.1")
	spec := load.Spec{Workload: load.TCPStream, Target: p.server.Address(), Flows: 2, Limit: 100, Stall: 2 * time.Second}
	join := func(run uint64) *session {
		var s *session
		if err := p.ns.Do(func() (err error) {
			s, err = dialTCP(t.Context(), spec)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.close)
		s.id.run = run
		if err := s.sendHeader(tcpStream{}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	join(7)
	awaitServed(t, p, "not all of 2 flows joined")
	for range 3 {
		join(8)
	}
	awaitServed(t, p, "does not belong")
	spec.Flows = 3
	m, err := p.client.Run(t.Context(), spec)
	if err != nil || m.Count != spec.Limit {
		t.Errorf("counted %d, %v", m.Count, err)
	}
}

// TestDatagramCounter ends the flows of a run one after the other: the last report is
// that of all, from the first counted datagram to the last.
func TestDatagramCounter(t *testing.T) {
	run := &serverRun{spec: load.Spec{Workload: load.UDPStream, Flows: 2}}
	counter := &run.datagrams
	counter.run, counter.start = run, time.Now().Add(-time.Second)
	if err := counter.open(100 * time.Millisecond); err != nil { // long before the first that is counted
		t.Fatal(err)
	}
	first := load.Served{Flows: 1, Count: 100, Received: 10, Overflowed: 1, OutOfOrder: 2}
	second := load.Served{Flows: 1, Count: 50, Received: 5, Overflowed: 3, OutOfOrder: 4}
	if last, err := counter.add(&first, 4*time.Second); last || err != nil || first.Flows != 1 || first.Seconds != 0 {
		t.Errorf("the first flow: %t, %v, %+v", last, err, first)
	}
	last, err := counter.add(&second, 3*time.Second)
	if !last || err != nil || second.Flows != 2 || second.Count != 150 || second.Received != 15 ||
		second.Overflowed != 4 || second.OutOfOrder != 6 || second.Seconds != (4*time.Second-counter.opened).Seconds() || counter.opened < time.Second {
		t.Errorf("all flows: %t, %v, %+v", last, err, second)
	}
}

// TestShare splits totals evenly, with nothing lost.
func TestShare(t *testing.T) {
	for _, all := range []uint64{0, 1, 7, 8, 9, 1 << 40} {
		var sum uint64
		for i := range 8 {
			part := share(all, i, 8)
			if part < all/8 || part > all/8+1 {
				t.Errorf("part %d of %d is %d", i, all, part)
			}
			sum += part
		}
		if sum != all {
			t.Errorf("parts of %d sum up to %d", all, sum)
		}
	}
}
