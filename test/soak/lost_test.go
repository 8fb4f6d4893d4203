// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

// connectionsVariable is the environment variable with the number of connections of TestNoneIsLost.
const connectionsVariable = "MUSTANG_CONNECTIONS"

// heldConnections per pod are open the whole time.
const heldConnections = 100

// TestNoneIsLost makes connections while processes that apply services are killed, the datapath is closed and opened
// again, its programs are replaced and backends change. No connection may be refused, reset or lose a packet, and
// open ones stay open.
func TestNoneIsLost(t *testing.T) {
	number := testkit.Repeats(10_000, 100_000)
	if text := os.Getenv(connectionsVariable); text != "" {
		var err error
		if number, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", connectionsVariable, err)
		}
	}
	x := &trouble{host: newHost(t, soakPods, 65536)}
	for i := range soakPods * podServers {
		x.pods[i/podServers].serve(t, uint16(serverPort+i%podServers), nil)
	}
	for owner, set := range map[service.Owner][]service.Service{service.Agent: soakSet(0, applied, 0),
		service.CLI: soakSet(applied, soakServices, 0)} {
		_, err := x.d.Services().Apply(t.Context(), owner, set)
		testkit.Require(t, err == nil, "%v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	short, held := newTally(), newTally()
	var running sync.WaitGroup
	run := func(do func() error) {
		running.Go(func() {
			if err := do(); err != nil {
				t.Error(err)
				stop()
			}
		})
	}
	run(func() error { return x.change(ctx) })
	run(func() error { return x.kill(ctx, t) })
	for _, p := range x.pods {
		for range workers {
			run(func() error { return p.callServices(ctx, short) })
		}
		run(func() error { return p.keepOpen(ctx, heldConnections, held) })
	}
	run(func() error {
		for short.count() < number && short.goesOn() && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		stop()
		return nil
	})
	running.Wait()
	t.Logf("%d changes of services, %d restarts, %d program swaps, %d killed processes", x.changes, x.restarts,
		x.swaps, x.kills)
	testkit.Check(t, x.restarts != 0 && x.swaps != 0 && x.kills != 0, "a kind of trouble never happened")
	short.want(t, "connections")
	held.want(t, "exchanges on open connections")
	x.wantNoLoss(t)
}

// count returns the number of connections or exchanges so far.
func (c *tally) count() int {
	c.Lock()
	defer c.Unlock()
	return c.made
}
