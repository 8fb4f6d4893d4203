// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// What the program answers.
const (
	verdictNext = 0xffffffff // TC_ACT_UNSPEC
	verdictDrop = 2          // TC_ACT_SHOT
)

// Of struct __sk_buff: its size and two of its fields.
const skbSize, skbTstamp, skbWireLen = 192, 152, 160

const dropped = -time.Hour // stands for a packet that is never due

// TestEDT passes packets while the bucket's full time is far in the future, so results do not depend on the clock.
// Due times are relative to that time.
func TestEDT(t *testing.T) {
	const ms = time.Millisecond
	for _, row := range []struct {
		name           string
		rate           uint64
		burst, horizon time.Duration
		sizes          []uint32
		due            []time.Duration
	}{
		{"one after the other", 1e6, 10 * ms, 2 * time.Hour, []uint32{1000, 1000, 500}, []time.Duration{-9 * ms, -8 * ms,
			-7500 * time.Microsecond}},
		{"no burst to speak of", 1e6, 1, 2 * time.Hour, []uint32{1000, 1000}, []time.Duration{0, ms}},
		{"rounded up", 3e9, ms, 2 * time.Hour, []uint32{64, 64}, []time.Duration{22 - ms, 44 - ms}},
		{"larger than the bucket", 1e6, 10 * ms, 2 * time.Hour, []uint32{64_000, 1000}, []time.Duration{0, 55 * ms}},
		{"beyond the horizon", 1e6, 10 * ms, time.Minute, []uint32{1000, 64}, []time.Duration{dropped, dropped}},
		{"next to the horizon", 1000, time.Second, time.Hour + 2*time.Second, []uint32{2000, 1000, 1000, 1000},
			[]time.Duration{0, 2 * time.Second, dropped, dropped}},
	} {
		t.Run(row.name, func(t *testing.T) {
			full := monotonic(t) + uint64(time.Hour)
			p := newProgram(t, edtProgEdt, edtBucket{Rate: row.rate, Burst: uint64(row.burst), Horizon: uint64(row.horizon),
				Full: full})
			taken := uint64(0)
			for i, size := range row.sizes {
				verdict, due := p.run(t, size)
				if row.due[i] == dropped {
					testkit.Check(t, verdict == verdictDrop,
						"packet %d: verdict %d, due %v, not dropped", i, int32(verdict), time.Duration(due-full))
					continue
				}
				taken += (uint64(size)*1e9 + row.rate - 1) / row.rate
				if want := full + uint64(row.due[i]); verdict != verdictNext || due != want {
					t.Errorf("packet %d: verdict %d, due %v, not %v", i, int32(verdict), time.Duration(due-full), row.due[i])
				}
			}
			got := p.full(t)
			testkit.Check(t, got == full+taken, "%v were taken, not %v", time.Duration(got-full), time.Duration(taken))
		})
	}
}

// TestEDTBurst passes packets at once until the burst is used up. A long pause does not enlarge the burst.
func TestEDTBurst(t *testing.T) {
	const cost, burst = time.Second, 2500 * time.Millisecond
	p := newProgram(t, edtProgEdt, edtBucket{Rate: 1000, Burst: uint64(burst), Horizon: uint64(time.Minute)})
	var began uint64
	for i := range 5 {
		before := monotonic(t)
		verdict, due := p.run(t, 1000)
		after := monotonic(t)
		testkit.Require(t, verdict == verdictNext, "packet %d: verdict %d", i, int32(verdict))
		if full := p.full(t); i < 2 && (due < before || due > after) || i >= 2 && due != full-uint64(burst) {
			t.Errorf("packet %d: due %v from now", i, time.Duration(due-before))
		}
		if i == 0 {
			began = before
		}
	}
	if full := p.full(t); full < began+5*uint64(cost) {
		t.Errorf("after five packets the bucket is full in %v", time.Duration(full-began))
	}
}

// TestEDTAtOnce passes packets from several threads at once: each takes its share, and no two are due at the same time.
func TestEDTAtOnce(t *testing.T) {
	const threads, each, size, cost = 4, 2000, 1000, uint64(time.Millisecond)
	full := monotonic(t) + uint64(time.Hour)
	p := newProgram(t, edtProgEdt, edtBucket{Rate: 1e6, Burst: cost, Horizon: uint64(100 * time.Hour), Full: full})
	var mutex sync.Mutex
	seen := make(map[uint64]bool)
	var group sync.WaitGroup
	for range threads {
		group.Go(func() {
			for range each {
				verdict, due := p.run(t, size)
				mutex.Lock()
				testkit.Check(t, verdict == verdictNext && !seen[due],
					"verdict %d, due %v, as another is", int32(verdict), time.Duration(due-full))
				seen[due] = true
				mutex.Unlock()
			}
		})
	}
	group.Wait()
	if got := p.full(t); got != full+threads*each*cost {
		t.Errorf("%v were taken, not %v", time.Duration(got-full), time.Duration(threads*each*cost))
	}
}

// TestBucketOf checks the bucket passed to the program.
func TestBucketOf(t *testing.T) {
	for limit, want := range map[Limit]edtBucket{
		{Rate: 8_000, Burst: 20_000}:   {Rate: 1000, Burst: 2_500_000_000, Horizon: 2_000_000_000},
		{Rate: 800e6}:                  {Rate: 100e6, Burst: 1_000_000, Horizon: 41_943_040},
		{Rate: 80e9, Burst: 8_000_000}: {Rate: 10e9, Burst: 100_000, Horizon: 25_000_000},
		{Rate: 8, Burst: 1 << 60}:      {Rate: 1, Burst: 274_877_906_880, Horizon: 2_000_000_000},
	} {
		got := bucketOf(limit)
		testkit.Check(t, got == want, "%+v: %+v, want %+v", limit, got, want)
	}
}

// program is one that sits on no device.
type program struct{ loaded }

func newProgram(t *testing.T, name string, bucket edtBucket) program {
	t.Helper()
	testkit.RequireRoot(t)
	objects := testkit.Must(load(name, bucket))(t)
	t.Cleanup(func() { _ = objects.Close() })
	return program{objects}
}

// run passes a packet of so many bytes, which already has a time.
func (p program) run(t *testing.T, size uint32) (verdict uint32, due uint64) {
	in, out := make([]byte, skbSize), make([]byte, skbSize)
	binary.NativeEndian.PutUint64(in[skbTstamp:], 1)
	binary.NativeEndian.PutUint32(in[skbWireLen:], size)
	verdict, err := p.Program.Run(&ebpf.RunOptions{Data: make([]byte, 64), Context: in, ContextOut: out})
	testkit.Check(t, err == nil, "%v", err)
	return verdict, binary.NativeEndian.Uint64(out[skbTstamp:])
}

func (p program) full(t *testing.T) uint64 {
	t.Helper()
	var bucket edtBucket
	testkit.Succeed(t, p.Buckets.Lookup(uint32(0), &bucket))
	return bucket.Full
}

// monotonic is the clock of departure times.
func monotonic(t *testing.T) uint64 {
	t.Helper()
	var now unix.Timespec
	testkit.Succeed(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return uint64(now.Nano())
}
