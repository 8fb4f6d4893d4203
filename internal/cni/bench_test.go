// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// BenchmarkAddDel attaches and detaches pods one after the other, without the start of a
// process. It reports the median of each step of ADD.
func BenchmarkAddDel(b *testing.B) {
	for _, mode := range []string{"veth", "bridge", "macvlan"} {
		for _, services := range []string{"off", "socket", "tc"} {
			b.Run(mode+"/"+services, func(b *testing.B) { benchmark(b, mode, services) })
		}
	}
}

func benchmark(b *testing.B, mode, services string) {
	f := newFixture(b)
	f.plugin.Cgroup = testkit.Cgroup(b)
	config := network("net", mode, fmt.Sprintf(`,"services":%q`, services))
	f.must(f.del(f.added("first", config)))
	took := map[string]time.Duration{}
	var last time.Time
	f.plugin.After = func(step string) error {
		took[step] += time.Since(last)
		last = time.Now()
		return nil
	}
	b.ResetTimer()
	for i := range b.N {
		b.StopTimer()
		p := f.pod(fmt.Sprint("p", i), config)
		b.StartTimer()
		last = time.Now()
		f.must(f.add(p))
		last = time.Now()
		f.must(f.del(p))
		took["DEL"] += time.Since(last)
		b.StopTimer()
		f.must(p.Close())
		b.StartTimer()
	}
	for step, all := range took {
		b.ReportMetric(float64(all.Microseconds())/float64(b.N), "µs/"+step)
	}
}
