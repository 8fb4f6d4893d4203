// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"net/netip"
	"testing"
	"time"

	"mustang/internal/load"
	"mustang/internal/testkit"
)

// TestNamespaces serves two namespaces from one process and drives them from another.
func TestNamespaces(t *testing.T) {
	near, far := testkit.VethPair(t)
	client, server := startAgent(t, agentOptions(nil)), startAgent(t, agentOptions(nil))
	addr := netip.MustParseAddrPort("10.0.0.2:5201")
	got, err := server.ListenIn(t.Context(), far.Path(), addr)
	testkit.Require(t, err == nil && got == addr, "listen on %v: %v", got, err)
	var turns []load.Slice
	for _, workload := range load.Workloads() {
		spec := load.Spec{Workload: workload, Target: addr, Namespace: near.Path(), Stall: 20 * time.Second}
		c := open(t, client, spec)
		turns = append(turns, load.Slice{Conn: c.ID, Duration: 5 * time.Millisecond})
	}
	_, err = client.Slices(t.Context(), turns)
	testkit.Require(t, err == nil, "%v", err)
	for _, s := range turns {
		m, err := client.Shut(t.Context(), s.Conn)
		if err != nil || m.Count+m.Sent == 0 || m.ClientLocal.Addr() != netip.MustParseAddr("10.0.0.1") ||
			m.ServerPeer != m.ClientLocal {
			t.Errorf("%d, %v to %v: %v", m.Count, m.ClientLocal, m.ServerPeer, err)
		}
	}
	for _, namespace := range []string{"", "/no/such/namespace"} {
		spec := load.Spec{Workload: load.TCPRR, Target: addr, Namespace: namespace, Stall: 300 * time.Millisecond}
		c, err := client.Open(t.Context(), spec)
		testkit.Check(t, err != nil, "namespace %q: connected %+v", namespace, c)
	}
}

// TestConnectionsAreLost drops one SYN of a hundred. The missing connections are counted with their time, and the
// others go on.
func TestConnectionsAreLost(t *testing.T) {
	near, far := testkit.VethPair(t)
	testkit.Drop(t, far, "tcp flags & (syn|ack) == syn numgen inc mod 100 50")
	client, server := startAgent(t, agentOptions(nil)), startAgent(t, agentOptions(nil))
	addr := netip.MustParseAddrPort("10.0.0.2:5201")
	if _, err := server.ListenIn(t.Context(), far.Path(), addr); err != nil {
		t.Fatal(err)
	}
	stall := 600 * time.Millisecond // a SYN is sent again after a second
	c := open(t, client, load.Spec{Workload: load.TCPCRR, Target: addr, Namespace: near.Path(), Stall: stall})
	turns := []load.Slice{{Conn: c.ID, Duration: time.Second}, {Conn: c.ID, Duration: time.Second}}
	results, err := client.Slices(t.Context(), turns)
	testkit.Succeed(t, err)
	for _, r := range results {
		testkit.Check(t, r.Count != 0 && r.Received == r.Count && r.Sent > r.Count && !(r.Seconds < stall.Seconds()),
			"%d of %d connections in %g s, want some lost, and their time in it", r.Count, r.Sent, r.Seconds)
	}
	m, err := client.Shut(t.Context(), c.ID)
	testkit.Check(t, err == nil && m.Count == results[0].Count+results[1].Count, "%d connections, %v", m.Count, err)
}

// TestDatagramsAreLost drops a part of the datagrams on the way: they are counted, and the connections go on.
func TestDatagramsAreLost(t *testing.T) {
	near, far := testkit.VethPair(t)
	testkit.Drop(t, far, "meta l4proto udp numgen random mod 4 0")
	client, server := startAgent(t, agentOptions(nil)), startAgent(t, agentOptions(nil))
	addr := netip.MustParseAddrPort("10.0.0.2:5201")
	_, err := server.ListenIn(t.Context(), far.Path(), addr)
	testkit.Require(t, err == nil, "%v", err)
	for _, workload := range []string{load.UDPRR, load.UDPStream} {
		c := open(t, client, load.Spec{Workload: workload, Target: addr, Namespace: near.Path(), Rate: 20e6,
			Stall: 20 * time.Second})
		turns := []load.Slice{{Conn: c.ID, Duration: 300 * time.Millisecond}, {Conn: c.ID, Duration: 300 * time.Millisecond}}
		if _, err := client.Slices(t.Context(), turns); err != nil {
			t.Fatal(err)
		}
		m, err := client.Shut(t.Context(), c.ID)
		if err != nil || m.Count == 0 || lost(m) <= 0.05 || lost(m) >= 0.6 {
			t.Errorf("%s: %d, %g lost of %d, %v", workload, m.Count, lost(m), m.Sent, err)
		}
		if workload == load.UDPRR && (uint64(m.Histogram.TotalCount()) != m.Count || m.Received != m.Count) {
			t.Errorf("%d latencies of %d transactions, %d answers", m.Histogram.TotalCount(), m.Count, m.Received)
		}
	}
}
