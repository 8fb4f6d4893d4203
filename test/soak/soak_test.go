// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

const soakVariable = "MUSTANG_SOAK" // the environment variable with the duration of TestSoak

const (
	// workers per pod, which together make soakRate connections a second in all, if the machine is fast enough.
	workers             = 2
	soakRate            = 2000
	standingConnections = 10 // per pod stay open to the end
)

// TestSoak has eight pods call fifty services, while their backends change, programs are replaced, processes are
// killed, and another pod floods. No connection of theirs may be refused, reset or lose a packet.
func TestSoak(t *testing.T) {
	duration := time.Duration(testkit.Repeats(8, 60)) * time.Second
	if text := os.Getenv(soakVariable); text != "" {
		var err error
		duration, err = time.ParseDuration(text)
		testkit.Require(t, err == nil, "%s: %v", soakVariable, err)
	}
	x := &trouble{host: newHost(t, soakPods+1, 8192)}
	flooder := x.pods[soakPods]
	flooder.set(t, "net/ipv4/ip_local_port_range", "1024 65535")
	x.pods[0].sink(t, 9000)
	for i := range soakPods * podServers {
		x.pods[i/podServers].serve(t, uint16(serverPort+i%podServers), nil)
	}
	testkit.Must(x.d.Services().Apply(t.Context(), service.Agent, soakSet(0, applied, 0)))(t)
	_, err := x.d.Services().Apply(t.Context(), service.CLI, append(soakSet(applied, soakServices, 0), x.flooded()))
	testkit.Succeed(t, err)
	ctx, stop := context.WithTimeout(t.Context(), duration)
	defer stop()
	c := &connections{t: t, stop: stop, short: newTally(), open: newTally()}
	c.run(func() error { return x.flood(ctx, flooder) })
	begun := time.Now()
	c.begin(ctx, x, standingConnections)
	c.running.Wait()
	t.Logf("%v: %d changes of services, %d restarts, %d program swaps, %d killed processes",
		time.Since(begun).Round(time.Second),
		x.changes, x.restarts, x.swaps, x.kills)
	t.Logf("%.0f short connections a second; until one stalled or was refused: %s",
		float64(c.short.made)/time.Since(begun).Seconds(), c.short.lasted())
	c.short.want(t, "connections")
	c.open.want(t, "exchanges on standing connections")
	x.wantNoLoss(t)
}

// connections are those of the pods amid trouble, short ones and ones that stay open.
type connections struct {
	t           *testing.T
	stop        func()
	short, open *tally
	running     sync.WaitGroup
}

// run runs something beside the rest. An error fails the test, and stops all.
func (c *connections) run(do func() error) {
	c.running.Go(func() {
		if err := do(); err != nil {
			c.t.Error(err)
			c.stop()
		}
	})
}

// begin begins the trouble, and the connections of pods, of which a number stays open per pod.
func (c *connections) begin(ctx context.Context, x *trouble, open int) {
	c.run(func() error { return x.change(ctx) })
	c.run(func() error { return x.kill(ctx, c.t) })
	for _, p := range x.pods[:soakPods] {
		for range workers {
			c.run(func() error { return p.callServices(ctx, c.short) })
		}
		c.run(func() error { return p.keepOpen(ctx, open, c.open) })
	}
}

// callServices makes connections at a steady rate until the context ends. It catches up on late ones.
func (p pod) callServices(ctx context.Context, met *tally) error {
	const interval = time.Second * soakPods * workers / soakRate
	return p.ns.Do(func() error {
		for next := time.Now(); ctx.Err() == nil && met.goesOn(); next = next.Add(interval) {
			if late := time.Since(next); late > time.Second {
				next = time.Now() // a busy machine
			}
			time.Sleep(time.Until(next))
			met.call(frontend(rand.IntN(soakServices)))
		}
		return nil
	})
}

// keepOpen uses connections that stay open until the context ends.
func (p pod) keepOpen(ctx context.Context, number int, met *tally) error {
	return p.ns.Do(func() error {
		conns := make([]client, number)
		for i := range conns {
			var err error
			if conns[i], err = dial(frontend(rand.IntN(soakServices))); err != nil {
				return err
			}
			defer conns[i].close()
		}
		for ctx.Err() == nil && met.goesOn() {
			met.exchangeAll(conns[rand.IntN(len(conns)):][:1])
			time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
		}
		met.exchangeAll(conns)
		return nil
	})
}

// wantNoLoss fails the test if a pod lost something, other than datagrams of a flood.
func (h *host) wantNoLoss(t *testing.T) {
	t.Helper()
	var all tcpCounters
	for _, p := range h.pods {
		tcp := testkit.Must(readTCPCounters(p.ns))(t)
		all.Retransmitted += tcp.Retransmitted
		all.SYNRetransmitted += tcp.SYNRetransmitted
		all.ResetsSent += tcp.ResetsSent
		all.Reset += tcp.Reset
		all.Overflows += tcp.Overflows
	}
	dropped := h.dropped(t)
	t.Logf("all pods: %+v; dropped %v", all, dropped)
	// TCP sends resets that no connection notices, also without services. If an ACK and a FIN change places between
	// CPUs, a socket in TIME_WAIT acknowledges the ACK to a socket that is gone.
	testkit.Check(t, all.SYNRetransmitted <= 0 && all.Reset <= 0 && all.Overflows <= 0,
		"connections lost their first packet, or were reset")
	for _, name := range []string{"drop_malformed", "drop_no_backend", "drop_backend_missing", "drop_port_exhausted",
		"drop_rewrite"} {
		testkit.Check(t, dropped[name] <= 0, "%s = %d", name, dropped[name])
	}
}
