// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkReserve reserves and releases a pod's two addresses; both halves by their medians. "held" is how many others
// have addresses all the while.
func BenchmarkReserve(b *testing.B) {
	for _, held := range []int{0, 250, 10_000} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			s := crowded(b, held)
			var reserves, releases []time.Duration
			for b.Loop() {
				start := time.Now()
				reserve(b, s, pod("a"), wide)
				middle := time.Now()
				release(b, s, pod("a"))
				reserves = append(reserves, middle.Sub(start))
				releases = append(releases, time.Since(middle))
			}
			report(b, "reserve", reserves)
			report(b, "release", releases)
		})
	}
}

// BenchmarkReserveParallel is the same by 100 at once.
func BenchmarkReserveParallel(b *testing.B) {
	s := crowded(b, 250)
	var mutex sync.Mutex
	var all []time.Duration
	var count atomic.Int64
	b.SetParallelism(50)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			o := pod(fmt.Sprint("a", count.Add(1)))
			start := time.Now()
			reserve(b, s, o, wide)
			took := time.Since(start)
			release(b, s, o)
			mutex.Lock()
			all = append(all, took)
			mutex.Unlock()
		}
	})
	report(b, "reserve", all)
}

// BenchmarkSync is what the disk takes to write a small new file and its name: the floor of Reserve.
func BenchmarkSync(b *testing.B) {
	s := crowded(b, 0)
	dir, err := os.Open(s.dir)
	if err != nil {
		b.Fatal(err)
	}
	defer dir.Close()
	var files, dirs []time.Duration
	for b.Loop() {
		file, err := s.write(record{Owner: pod("a")})
		if err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		if err := file.Sync(); err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		if err := dir.Sync(); err != nil {
			b.Fatal(err)
		}
		files, dirs = append(files, middle.Sub(start)), append(dirs, time.Since(middle))
		_ = file.Close()
		_ = os.Remove(s.path(newFile))
	}
	report(b, "file", files)
	report(b, "directory", dirs)
}

var wide = parseSets("10.0.0.0/8", "fd00::/64")

// crowded is a store where so many have addresses, written without waiting for the disk. TMPDIR says on which disk.
func crowded(b *testing.B, held int) *Store {
	s := open(b)
	reserve(b, s, pod("a"), wide)
	release(b, s, pod("a"))
	for i := range held {
		o := pod(fmt.Sprint("held", i))
		pools, err := preparePools(wide, nil)
		if err != nil {
			b.Fatal(err)
		}
		leases, err := s.allocate(o, pools)
		if err != nil {
			b.Fatal(err)
		}
		file, err := s.publish(record{s.Boot, o, leases})
		if err != nil {
			b.Fatal(err)
		}
		_ = file.Close()
	}
	return s
}

func report(b *testing.B, what string, took []time.Duration) {
	slices.Sort(took)
	for name, part := range map[string]int{"p50": 50, "p99": 99} {
		b.ReportMetric(float64(took[len(took)*part/100].Nanoseconds())/1e3, what+"-"+name+"-us")
	}
}
