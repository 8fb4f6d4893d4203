// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"mustang/internal/load"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// BenchmarkInterleaved runs two connections of each workload over one veth pair, both
// ends on one CPU, in turns of 10 ms: all in random order and then in the reverse, in
// each round. It reports the median rate of the first, and the median ratio of the two
// with its bootstrap interval. The ratio is 1 but for noise. -benchtime=150x makes 150
// rounds.
func BenchmarkInterleaved(b *testing.B) {
	const turn = 10 * time.Millisecond
	near, far := testkit.VethPair(b)
	prepare(b, near)
	prepare(b, far)
	o := agentOptions(nil)
	o.CPU = 0
	client, server := startAgent(b, o), startAgent(b, o)
	target, err := server.ListenIn(b.Context(), far.Path(), netip.MustParseAddrPort("10.0.0.2:5201"))
	if err != nil {
		b.Fatal(err)
	}
	workloads := []string{load.TCPRR, load.TCPStream, load.TCPCRR}
	var turns []load.Slice
	for _, workload := range workloads {
		for range 2 {
			c := open(b, client, load.Spec{Workload: workload, Target: target, Namespace: near.Path()})
			turns = append(turns, load.Slice{Conn: c.ID, Duration: turn})
		}
	}
	rates := make([][]float64, len(turns))
	for b.Loop() {
		order := rand.Perm(len(turns))
		back := slices.Clone(order)
		slices.Reverse(back)
		order = append(order, back...)
		round := make([]load.Slice, len(order))
		for i, n := range order {
			round[i] = turns[n]
		}
		results, err := client.Slices(b.Context(), round)
		if err != nil {
			b.Fatal(err)
		}
		sums := make([]load.SliceResult, len(turns))
		for i, r := range results {
			sums[order[i]].Count += r.Count
			sums[order[i]].Seconds += r.Seconds
		}
		for i, s := range sums {
			rates[i] = append(rates[i], float64(s.Count)/s.Seconds)
		}
	}
	for i, workload := range workloads {
		first, again := rates[2*i], rates[2*i+1]
		ratios := make([]float64, len(first))
		for n := range first {
			ratios[n] = first[n] / again[n]
		}
		low, high := bootstrap(ratios)
		b.ReportMetric(median(first), workload+"/s")
		b.ReportMetric(median(ratios), workload+"-ratio")
		b.ReportMetric(low, workload+"-low")
		b.ReportMetric(high, workload+"-high")
	}
	b.ReportMetric(0, "ns/op")
	for _, t := range turns {
		if _, err := client.Shut(b.Context(), t.Conn); err != nil {
			b.Fatal(err)
		}
	}
}

// prepare sets what a namespace of a lab with persistent connections needs.
func prepare(t testing.TB, ns *netns.Namespace) {
	t.Helper()
	for name, value := range map[string]string{
		"tcp_slow_start_after_idle": "0", "tcp_tw_reuse": "1", "ip_local_port_range": "1024 65000",
	} {
		if err := ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0o644) }); err != nil {
			t.Fatal(err)
		}
	}
}

// median returns the middle value.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// bootstrap returns the 95 % interval of the median.
func bootstrap(values []float64) (low, high float64) {
	const draws = 1000
	medians := make([]float64, draws)
	drawn := make([]float64, len(values))
	for i := range medians {
		for n := range drawn {
			drawn[n] = values[rand.IntN(len(values))]
		}
		medians[i] = median(drawn)
	}
	slices.Sort(medians)
	return medians[draws/40], medians[draws-draws/40]
}
