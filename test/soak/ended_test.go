// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

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
				if err := from.ns.Do(func() error {
					met.calls(slices.Concat(services[worker:], services[:worker]), round/2)
					return nil
				}); err != nil {
					t.Error(err)
				}
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
