// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

// connectionsVariable is the environment variable with the number of connections of TestNoneIsLost.
const connectionsVariable = "MUSTANG_CONNECTIONS"

const heldConnections = 100 // per pod are open the whole time

// TestNoneIsLost makes connections while processes that apply services are killed, the datapath is closed and opened
// again, its programs are replaced and backends change. No connection may be refused, reset or lose a packet, and
// open ones stay open.
func TestNoneIsLost(t *testing.T) {
	number := testkit.Repeats(10_000, 100_000)
	if text := os.Getenv(connectionsVariable); text != "" {
		var err error
		number, err = strconv.Atoi(text)
		testkit.Require(t, err == nil, "%s: %v", connectionsVariable, err)
	}
	x := &trouble{host: newHost(t, soakPods, 65536)}
	for i := range soakPods * podServers {
		x.pods[i/podServers].serve(t, uint16(serverPort+i%podServers), nil)
	}
	for owner, set := range map[service.Owner][]service.Service{service.Agent: soakSet(0, applied, 0),
		service.CLI: soakSet(applied, soakServices, 0)} {
		testkit.Must(x.d.Services().Apply(t.Context(), owner, set))(t)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c := &connections{t: t, stop: stop, short: newTally(), open: newTally()}
	c.begin(ctx, x, heldConnections)
	c.run(func() error {
		for c.short.count() < number && c.short.goesOn() && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		stop()
		return nil
	})
	c.running.Wait()
	t.Logf("%d changes of services, %d restarts, %d program swaps, %d killed processes", x.changes, x.restarts,
		x.swaps, x.kills)
	testkit.Check(t, x.restarts != 0 && x.swaps != 0 && x.kills != 0, "a kind of trouble never happened")
	c.short.want(t, "connections")
	c.open.want(t, "exchanges on open connections")
	x.wantNoLoss(t)
}

// count returns the number of connections or exchanges so far.
func (c *tally) count() int {
	c.Lock()
	defer c.Unlock()
	return c.made
}

// TestEndedConnections has one client open and close connections through services that share their backends. What has
// ended must be in the way of nothing: a client uses each port for one service after the other.
func TestEndedConnections(t *testing.T) {
	rows, round, rounds, ports := uint32(4096), 4000, 3, "40000 41999"
	if testkit.Repeats(0, 1) == 1 {
		rows, round, rounds, ports = 131072, 40000, 6, "32768 60999"
	}
	h := newHost(t, 3, rows)
	from := h.pods[0]
	from.set(t, "net/ipv4/ip_local_port_range", ports)
	backends := []netip.AddrPort{h.pods[1].serve(t, 8080, nil), h.pods[2].serve(t, 8080, nil)}
	var services []netip.AddrPort
	for i := range 10 {
		services = append(services, h.put(t, i, service.TCP, backends...))
	}
	for i := range rounds {
		met, before := newTally(), h.counted(t)
		var running sync.WaitGroup
		for worker := range 2 {
			running.Go(func() {
				err := from.ns.Do(func() error {
					met.calls(slices.Concat(services[worker:], services[:worker]), round/2)
					return nil
				})
				testkit.Check(t, err == nil, "%v", err)
			})
		}
		running.Wait()
		after := h.counted(t)
		t.Logf("round %d: %d of %d connections got another port", i+1, after["port_changed"]-before["port_changed"], round)
		met.want(t, "connections")
		if !met.goesOn() {
			break
		}
	}
	time.Sleep(1500 * time.Millisecond) // a connection keeps its port for its last packets
	const last = 500
	met, before := newTally(), h.counted(t)
	testkit.Succeed(t, from.ns.Do(func() error { met.calls(services[:1], last); return nil }))
	met.want(t, "connections after a pause")
	if moved := h.counted(t)["port_changed"] - before["port_changed"]; moved > last/20 {
		t.Errorf("%d of %d connections got another port: those of connections that ended are taken still", moved, last)
	}
	dropped := h.dropped(t)
	testkit.Check(t, len(dropped) == 0, "dropped %v", dropped)
	if tcp, err := readTCPCounters(from.ns); err != nil || tcp.SYNRetransmitted > 0 || tcp.Reset > 0 {
		t.Errorf("the client's counters are %+v, %v", tcp, err)
	}
}
