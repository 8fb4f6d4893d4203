// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"fmt"
	"time"

	"mustang/internal/lab"
	"mustang/internal/load"
)

const (
	// SameSuite has pairs of the same path: a difference in one is false.
	SameSuite = "self-test-same"
	// KnownSuite has pairs with a difference that is set in advance.
	KnownSuite = "self-test-known"
)

// Paths of [KnownSuite] that serve as the base for paths with a longer delay.
const (
	KnownPath = "plain"      // its server does not compute
	KnownWire = "wire-delay" // its wire has [KnownDelay]
)

// sameConnections is the number of connections on each of three paths: with two workloads they make 1,026 pairs.
const sameConnections = 19

// Known differences of [KnownSuite].
var (
	knownDelays = []time.Duration{35 * time.Nanosecond, 200 * time.Nanosecond, time.Microsecond}
	// KnownRate is the rate of a wire in bit/s, and KnownDelay the delay of one in each direction.
	KnownRate  uint64 = 1e9
	KnownDelay        = time.Millisecond
)

// SelfTest returns the suites that test the measurement itself.
func SelfTest() []Suite { return []Suite{sameSuite(), knownSuite()} }

func sameSuite() Suite {
	s := newSuite("Does the measurement find differences where there are none?", tcpStreams(1), tcpRR())
	s.Name, s.Doc = SameSuite, "the same paths, measured many times: no difference is true"
	for _, link := range []string{"veth", "macvlan", "veth+ebpf"} {
		p := podPath(link, link)
		if link == "veth+ebpf" {
			p = ebpfPath(link, "veth")
		}
		var ids []string
		for i := range sameConnections {
			p.ID, p.Variant = fmt.Sprintf("%s/%d", link, i+1), fmt.Sprint(i+1)
			s.add(p, ids...)
			ids = append(ids, p.ID)
		}
	}
	return s
}

func knownSuite() Suite {
	s := newSuite("Does the measurement find a known difference, with the right size?", tcpRR(), tcpStreams(1))
	s.Name, s.Doc = KnownSuite, "a path with known delays and rates"
	plain := podPath(KnownPath, "veth")
	plain.Workload = load.TCPRR
	s.addBaseline(plain)
	for _, d := range knownDelays {
		p := plain
		p.ID, p.Variant, p.Delay = fmt.Sprintf("delay-%v", d), d.String(), d
		s.add(p, plain.ID)
	}
	wire := hostsPath("wire-rate", lab.HostB, lab.HostA, lab.Options{Link: lab.LinkHost, WireRate: KnownRate})
	wire.Workload, wire.Variant, wire.Baseline = load.TCPStream, "rate", false
	s.Paths = append(s.Paths, wire)
	// An idle CPU takes a time of its own to wake, which is the same with either delay.
	for i, id := range []string{KnownWire, "wire-delay-twice"} {
		o := lab.Options{Link: lab.LinkHost, WireDelay: time.Duration(i+1) * KnownDelay}
		far := hostsPath(id, lab.HostB, lab.HostA, o)
		far.Workload, far.Variant, far.Baseline = load.TCPRR, far.Lab.WireDelay.String(), false
		s.Paths = append(s.Paths, far)
	}
	s.compare("wire-delay-twice", KnownWire)
	return s
}
