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
)

// TestSlicesAllocateNothing runs each end of each workload in this process and the other
// one elsewhere: a burst allocates nothing that grows with it.
func TestSlicesAllocateNothing(t *testing.T) {
	client, server := startAgent(t, agentOptions(nil)), startAgent(t, agentOptions(nil))
	if err := server.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
		t.Fatal(err)
	}
	here := serveHere(t)
	for name, spec := range sliceSpecs(server.Address()) {
		w := &worker{thread: threadConfig{CPU: -1}}
		c, err := w.openPersistent(t.Context(), spec)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
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

// serveHere runs a server in this process.
func serveHere(t *testing.T) netip.AddrPort {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	in, feed := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Main(ctx, nil, in, write) }()
	t.Cleanup(func() {
		cancel()
		<-done
		_, _, _ = read.Close(), write.Close(), feed.Close()
	})
	replies := load.NewMessageReader(read, 1<<20)
	if err := replies.Read(new(load.Reply)); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	return after.Mallocs - before.Mallocs
}
