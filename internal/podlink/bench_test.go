// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// benched is a host that is set up, for pods of one mode.
type benched struct {
	mode    Mode
	network Network
}

// forEachBenched runs a benchmark for each mode that this kernel has, and that
// needs no program besides.
func forEachBenched(b *testing.B, run func(b *testing.B, host benched)) {
	testkit.RequireRoot(b)
	for _, mode := range Modes() {
		if mode.Traits().Needs != NeedsNothing && mode.Traits().Needs != NeedsUplink {
			continue
		}
		b.Run(mode.Name(), func(b *testing.B) {
			if err := mode.Probe(); errors.Is(err, errors.ErrUnsupported) {
				b.Skip(err)
			} else if err != nil {
				b.Fatal(err)
			}
			host := testkit.Namespace(b, "host")
			addUplink(b, host)
			network := Network{
				Host:     host,
				Uplink:   uplinkName,
				Gateways: []netip.Prefix{netip.MustParsePrefix("192.168.10.1/24"), netip.MustParsePrefix("fd00:10::1/64")},
			}
			if err := mode.Setup(network); err != nil {
				b.Fatal(err)
			}
			run(b, benched{mode, network})
		})
	}
}

// newPod describes a pod in a new namespace.
func (h benched) newPod(b *testing.B) Pod {
	b.Helper()
	ns, err := netns.New()
	if err != nil {
		b.Fatal(err)
	}
	// Not before the end: the kernel takes its time to clear up, beside what is timed.
	b.Cleanup(func() {
		if err := ns.Close(); err != nil {
			b.Error(err)
		}
	})
	return Pod{
		Namespace: ns, IfName: "eth0", HostIfName: "msta",
		Addresses: []netip.Addr{netip.MustParseAddr("192.168.10.10"), netip.MustParseAddr("fd00:10::10")},
	}
}

// cycle creates and deletes a pod's link, and returns how long each took.
func (h benched) cycle(b *testing.B) (create, remove time.Duration) {
	b.Helper()
	pod := h.newPod(b)
	began := time.Now()
	if _, err := h.mode.Create(h.network, pod); err != nil {
		b.Fatal(err)
	}
	create = time.Since(began)
	began = time.Now()
	if err := h.mode.Delete(h.network, pod); err != nil {
		b.Fatal(err)
	}
	return create, time.Since(began)
}

// BenchmarkCreateDelete plugs pods of both families in, each in a namespace that was
// just made, and unplugs them. It tells the median of each in microseconds: means
// are those of what else the machine does.
func BenchmarkCreateDelete(b *testing.B) {
	forEachBenched(b, func(b *testing.B, host benched) {
		var creates, removes []time.Duration
		for range b.N {
			create, remove := host.cycle(b)
			creates, removes = append(creates, create), append(removes, remove)
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(median(creates), "create-µs")
		b.ReportMetric(median(removes), "delete-µs")
	})
}

// BenchmarkSetup sets up a host that is set up.
func BenchmarkSetup(b *testing.B) {
	forEachBenched(b, func(b *testing.B, host benched) {
		for b.Loop() {
			if err := host.mode.Setup(host.network); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// median is in microseconds.
func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Nanoseconds()) / 1e3
}
