// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"
)

// wordedPair is two ways of a suite whose difference is told in words.
type wordedPair struct{ above, below, words string }

// wordedPairs are those of a suite.
func wordedPairs(suite string) []wordedPair {
	switch suite {
	case suiteInterfaces:
		return []wordedPair{
			{"host-ip", "loopback", "The host's own address against 127.0.0.1"},
			{"published-port/localhost", "published-port/host-ip", "A published port by 127.0.0.1 against the host's address"},
			{"published-port/ebpf/localhost", "published-port/ebpf/host-ip", "The same by Mustang's services"},
			{"host-to-container", "container-to-host", "Host to container against container to host"},
			{"tun-offload/pod-ip", "tun/pod-ip", "TUN with offloads against TUN without"},
		}
	case suiteDocker:
		return []wordedPair{
			{"published-port/two-hosts", "host-mode", "From another host, a published port against host mode"},
			{"published-port/localhost", "published-port/same-host", "On the host itself, a published port by 127.0.0.1 against the host's address"},
			{"published-port/localhost", "published-port/localhost/no-proxy", "By 127.0.0.1, Docker's proxy against rules alone"},
			{"container-to-container/host-ip", "container-to-container/ip", "From container to container, the host's address and port against the container's own"},
		}
	case suiteCNI:
		return []wordedPair{
			{"mustang-veth", "ptp", "mustang-veth against ptp"},
			{"mustang-macvlan", "macvlan", "mustang-macvlan against macvlan"},
			{"mustang-veth+socket", "mustang-veth", "With services at the socket, mustang-veth"},
			{"mustang-veth+ebpf", "mustang-veth", "With services per packet too, mustang-veth"},
			{"mustang-bridge+socket", "mustang-bridge", "With services at the socket, mustang-bridge"},
			{"mustang-bridge+ebpf", "mustang-bridge", "With services per packet too, mustang-bridge"},
			{"mustang-macvlan+socket", "mustang-macvlan", "With services at the socket, mustang-macvlan"},
			{"mustang-macvlan+ebpf", "mustang-macvlan", "With services per packet too, mustang-macvlan"},
		}
	}
	return nil
}

// pairs tells the differences of the suite's worded pairs that have a figure.
func (s *set) pairs() []string {
	var out []string
	for _, p := range wordedPairs(s.suite) {
		a, b := s.entry(p.above), s.entry(p.below)
		if a != nil && b != nil && a.ok() && b.ok() {
			out = append(out, p.words+": "+s.says(s.difference(a, b))+".")
		}
	}
	return out
}

// interfacesAnswer ranks all ways.
func (s *set) interfacesAnswer() answer {
	ranked := s.ranked()
	a := answer{Name: s.name, Lead: s.first(s.withoutRepeats(), noun{one: "way"})}
	if len(ranked) < 2 {
		return a
	}
	best, worst := ranked[0], ranked[len(ranked)-1]
	a.More = append(a.More, "Ranking from the "+s.reading.extreme+" median (~: no difference found between neighbours): "+s.ranking(ranked)+".")
	a.More = append(a.More, "The other end: "+worst.connection+" with "+s.figure(worst)+", against "+best.connection+": "+s.says(s.difference(worst, best))+".")
	a.More = append(a.More, s.pairs()...)
	return a
}

// withoutRepeats are all entries but second measurements.
func (s *set) withoutRepeats() []*entry {
	return slices.DeleteFunc(slices.Clone(s.entries), func(e *entry) bool { return e.repeat })
}

// ranked are the measured entries, the best first.
func (s *set) ranked() []*entry {
	out := s.measured()
	slices.SortStableFunc(out, func(a, b *entry) int {
		return compareBool(s.reading.better(b.Median, a.Median), s.reading.better(a.Median, b.Median))
	})
	return out
}

// ranking names entries in their order, with a tilde between those of which none
// is known to be the better.
func (s *set) ranking(entries []*entry) string {
	var b strings.Builder
	for i, e := range entries {
		switch {
		case i == 0:
		case s.compare(entries[i-1], e) == tied:
			b.WriteString(" ~\u00a0")
		default:
			b.WriteString(", ")
		}
		b.WriteString(e.connection)
	}
	return b.String()
}
