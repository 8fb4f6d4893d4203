// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/load"
	"mustang/internal/testkit"
)

// localPair starts a client and a server on loopback, where the tests run.
func localPair(t testing.TB, host string) pair {
	t.Helper()
	p := pair{client: startAgent(t, agentOptions(nil)), server: startAgent(t, agentOptions(nil))}
	testkit.Succeed(t, p.server.Listen(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(host), 0)))
	return p
}

func open(t testing.TB, a *load.Agent, spec load.Spec) load.Conn {
	t.Helper()
	c, err := a.Open(t.Context(), spec)
	testkit.Succeed(t, err)
	return c
}

func (p pair) persistent(workload string) load.Spec {
	return load.Spec{Workload: workload, Target: p.server.Address(), Stall: 20 * time.Second}
}

const paced = "a pace" // names the connection with a pace

func sliceSpecs(target netip.AddrPort) map[string]load.Spec {
	specs := map[string]load.Spec{}
	persistent := func(workload string) load.Spec {
		return load.Spec{Workload: workload, Target: target, Stall: 20 * time.Second}
	}
	for _, workload := range load.Workloads() {
		spec := persistent(workload)
		spec.Rate = 500e6
		specs[workload] = spec
	}
	large := persistent(load.TCPRR)
	large.Request, large.Response = 100_000, 3
	specs["large requests"] = large
	large.Workload, large.Response = load.TCPCRR, 300_000
	specs["large connections"] = large
	several := persistent(load.TCPStream)
	several.Flows = 3
	specs["several flows"] = several
	several.Reverse = true
	specs["reversed"] = several
	several.Workload, several.Reverse, several.Rate = load.UDPStream, false, 500e6
	specs["several flows of datagrams"] = several
	pace := persistent(load.TCPRR)
	pace.Pace = 1000
	specs[paced] = pace
	return specs
}

// TestSlices interleaves connections of all kinds. The counts of their slices must match the reports of the shut
// connections, and the counts of the server.
func TestSlices(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			p := localPair(t, host)
			conns := map[string]load.Conn{}
			var turns []load.Slice
			for name, spec := range sliceSpecs(p.server.Address()) {
				c := open(t, p.client, spec)
				conns[name] = c
				for range 4 {
					turns = append(turns, load.Slice{Conn: c.ID, Duration: 5 * time.Millisecond})
				}
			}
			sums := map[uint64]load.SliceResult{}
			for range 2 {
				rand.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
				results, err := p.client.Slices(t.Context(), turns)
				testkit.Succeed(t, err)
				for i, r := range results {
					testkit.Check(t, r.Count+r.Sent != 0 && !(r.Seconds < 0.005) && !(r.Machine.Seconds < r.Seconds),
						"a slice counts %d in %g s, the machine's window has %g s", r.Count, r.Seconds, r.Machine.Seconds)
					sum := sums[turns[i].Conn]
					sum.Count += r.Count
					sum.Seconds += r.Seconds
					sums[turns[i].Conn] = sum
				}
			}
			for name, c := range conns {
				m, err := p.client.Shut(t.Context(), c.ID)
				testkit.Require(t, err == nil, "%s: %v", name, err)
				checkTotal(t, name, m, sums[c.ID])
				if m.ClientPeer != p.server.Address() || m.ServerLocal != m.ClientPeer || m.ServerPeer != m.ClientLocal {
					t.Errorf("%s: ends do not fit: %+v", name, m)
				}
				own := m.ClientLocal.Port() >= firstOwnPort && m.ClientLocal.Port() < firstOwnPort+ownPorts
				if m.ClientCongestion != "" && own != (m.Workload != load.TCPCRR) {
					t.Errorf("%s: a connection from port %d", name, m.ClientLocal.Port())
				}
			}
		})
	}
}

// TestDelay checks that a server computes for the time of its delay before each response.
func TestDelay(t *testing.T) {
	p := localPair(t, "127.0.0.1")
	spec := p.persistent(load.TCPRR)
	spec.Delay = 2 * time.Millisecond
	c := open(t, p.client, spec)
	if _, err := p.client.Slices(t.Context(), []load.Slice{{Conn: c.ID, Duration: 20 * time.Millisecond}}); err != nil {
		t.Fatal(err)
	}
	m, err := p.client.Shut(t.Context(), c.ID)
	testkit.Succeed(t, err)
	// The delay is a computation, and the CPU may be faster than when it was calibrated. Without it a transaction takes
	// some 20 µs.
	least := time.Duration(m.Histogram.ValueAtPercentile(0))
	testkit.Check(t, least >= spec.Delay/2, "a transaction took %v with a delay of %v", least, spec.Delay)
}

func checkTotal(t *testing.T, name string, m load.Measurement, sum load.SliceResult) {
	t.Helper()
	testkit.Check(t, m.Count == sum.Count && !(math.Abs(m.Seconds-sum.Seconds) > 1e-6),
		"%s: %d in %g s, the slices sum up to %d in %g s", name, m.Count, m.Seconds, sum.Count, sum.Seconds)
	testkit.Check(t, !(m.Machine.Seconds <= 0) && !(m.Rate <= 0), "%s: machine %+v, rate %g", name, m.Machine, m.Rate)
	if !(load.Spec{Workload: m.Workload}).IsStream() && name != paced {
		checkHistogram(t, m)
	}
	counts := strings.HasPrefix(m.Workload, "udp") || m.Workload == load.TCPCRR || name == paced
	testkit.Check(t, (m.Sent > 0) == counts && m.Received <= m.Sent,
		"%s: %d datagrams or transactions sent, %d received", name, m.Sent, m.Received)
}

// TestPaceGoesOn takes slices of connections with a pace. Over all slices as many requests are due as the pace sets,
// also where few or less than one are due in a slice.
func TestPaceGoesOn(t *testing.T) {
	p := localPair(t, "127.0.0.1")
	const length, turns = 50 * time.Millisecond, 10
	for _, pace := range []int{20, 50, 70, 200, 5000} {
		spec := p.persistent(load.TCPRR)
		spec.Pace = pace
		c := open(t, p.client, spec)
		results, err := p.client.Slices(t.Context(), slices.Repeat([]load.Slice{{Conn: c.ID, Duration: length}}, turns))
		testkit.Succeed(t, err)
		var sent, seconds float64
		for _, r := range results {
			sent += float64(r.Sent)
			seconds += r.Seconds
		}
		if least, most := float64(pace)*turns*length.Seconds()-1, float64(pace)*seconds+1; sent < least || sent > most {
			t.Errorf("%d per second: %g were due in %g s, want %g to %g", pace, sent, seconds, least, most)
		}
	}
}
