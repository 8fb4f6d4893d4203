// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// BenchmarkWanted tells what is kept of 10,000 Services with a port each, in bytes per Service.
func BenchmarkWanted(b *testing.B) {
	const n = 10_000
	var names []manifest.Name
	for i := range n {
		names = append(names, manifest.Name{Namespace: "shop", Name: fmt.Sprint("web-", i)})
	}
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		w := newWanted(manifest.Name.Compare, noBalancer)
		for i, name := range names {
			frontend := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80)
			w.set(name, []service.Service{{Frontend: frontend, Protocol: service.TCP}}, changes{})
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/Service")
		runtime.KeepAlive(w)
	}
}

// noBalancer has no address.
func noBalancer(manifest.Name, netip.Addr) bool { return false }
