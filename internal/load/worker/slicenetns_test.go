// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"io"
	"net/netip"
	"os"
	"runtime"
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

// TestSlicesAllocateNothing runs each end of each workload in this process and the other
// one elsewhere: a burst allocates nothing that grows with it.
func TestSlicesAllocateNothing(t *testing.T) {
	client, server := startAgent(t, agentOptions(nil)), startAgent(t, agentOptions(nil))
	testkit.Succeed(t, server.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0")))
	here := serveHere(t)
	for name, spec := range sliceSpecs(server.Address()) {
		w := &worker{congestion: "reno", thread: threadConfig{CPU: -1}}
		c, err := w.openPersistent(t.Context(), spec)
		testkit.Require(t, err == nil, "%s: %v", name, err)
		var carried load.SliceResult
		n := mallocs(t, func() error {
			return w.thread.run(func() (err error) {
				carried, err = c.carry(burst{length: 50 * time.Millisecond, counted: true})
				return err
			})
		})
		for _, f := range c.flows {
			if _, err := f.end(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		c.close()
		if carried.Count+carried.Sent == 0 || n > 60 { // the runtime's own, now and then
			t.Errorf("%s: carrying %d allocates %d times in the client", name, carried.Count, n)
		}
		spec.Target = here
		stands := open(t, client, spec)
		n = mallocs(t, func() error {
			_, err := client.Slices(t.Context(), []load.Slice{{Conn: stands.ID, Duration: 50 * time.Millisecond}})
			return err
		})
		if n > 200 { // the parent's own
			t.Errorf("%s: a slice allocates %d times in the server", name, n)
		}
	}
}

func serveHere(t *testing.T) netip.AddrPort {
	t.Helper()
	read, write, err := os.Pipe()
	testkit.Succeed(t, err)
	in, feed := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Main(ctx, []string{"--congestion=reno"}, in, write) }()
	t.Cleanup(func() {
		cancel()
		<-done
		_, _, _ = read.Close(), write.Close(), feed.Close()
	})
	replies := load.NewMessageReader(read, 1<<20)
	testkit.Succeed(t, replies.Read(new(load.Reply)))
	if err := load.NewMessageWriter(feed).Write(load.Call{ID: 1, Op: load.OpListen,
		Address: netip.MustParseAddrPort("127.0.0.1:0")}); err != nil {
		t.Fatal(err)
	}
	var r load.Reply
	if err := replies.Read(&r); err != nil || r.Error != nil {
		t.Fatal(err, r.Error)
	}
	return r.Address
}

// mallocs counts what fn allocates. testing.AllocsPerRun would leave only one
// thread to run Go code, which the far end needs too.
func mallocs(t *testing.T, fn func() error) uint64 {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := fn()
	runtime.ReadMemStats(&after)
	testkit.Succeed(t, err)
	return after.Mallocs - before.Mallocs
}
