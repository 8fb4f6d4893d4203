// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/load"
)

// sessionPair returns two ends of a connection over loopback.
func sessionPair(t testing.TB, spec load.Spec) (client, server *session) {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	near, err := net.Dial("tcp4", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	sessions := [2]*session{}
	for i, conn := range []net.Conn{near, far} {
		tcp, ok := conn.(*net.TCPConn)
		if !ok {
			t.Fatalf("connection is a %T", conn)
		}
		if sessions[i], err = newSession(tcp, spec); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sessions[i].close)
	}
	return sessions[0], sessions[1]
}

// rrPair returns a client whose server answers on a thread of its own.
func rrPair(t testing.TB) *requester {
	client, server := sessionPair(t, load.Spec{Workload: load.TCPRR, Stall: 20 * time.Second})
	requester, err := newRequester(client)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- threadConfig{CPU: -1}.run(func() error { return tcpRR{}.serve(server) }) }()
	t.Cleanup(func() {
		client.interrupt()
		if err := <-done; !errors.Is(err, io.EOF) {
			t.Errorf("server: %v", err)
		}
	})
	return requester
}

// BenchmarkRR is the request/response loop with its clock and histogram.
func BenchmarkRR(b *testing.B) {
	client := rrPair(b)
	b.ReportAllocs()
	b.ResetTimer()
	err := threadConfig{CPU: -1}.run(func() error {
		_, err := client.transact(rrMeasured, 0, uint64(b.N))
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(client.histogram.ValueAtPercentile(50)), "p50-ns")
}

// BenchmarkRecord is what the loop itself adds to a transaction: a clock and a
// histogram entry.
func BenchmarkRecord(b *testing.B) {
	histogram := hdrhistogram.New(histogramMin, histogramMax, histogramDigits)
	start := time.Now()
	var last time.Duration
	for b.Loop() {
		now := time.Since(start)
		if err := histogram.RecordValue(int64(now - last)); err != nil {
			b.Fatal(err)
		}
		last = now
	}
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

// TestHotLoops checks that neither loop allocates.
func TestHotLoops(t *testing.T) {
	client := rrPair(t)
	n := mallocs(t, func() error {
		_, err := client.transact(rrMeasured, 0, 1000)
		return err
	})
	if n > 50 { // the runtime's own, now and then
		t.Errorf("1000 transactions allocate %d times", n)
	}
	near, far := sessionPair(t, load.Spec{Stall: 20 * time.Second})
	buf, into := make([]byte, 4096), make([]byte, 4096)
	n = mallocs(t, func() error {
		for range 1000 {
			if _, err := near.write(buf); err != nil {
				return err
			}
			if _, err := far.read(into); err != nil {
				return err
			}
		}
		return nil
	})
	if n > 50 {
		t.Errorf("1000 writes and reads allocate %d times", n)
	}
}
