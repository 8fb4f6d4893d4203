// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"net/netip"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

// way is how a lab's packets travel and its services are made.
type way struct {
	name          string
	datapath, via string
	fromHost      bool // services reach the host's own processes as well
}

func ways() []way {
	return []way{
		{name: "kernel", datapath: lab.DatapathKernel, via: lab.ViaNone},
		{name: "per packet", datapath: lab.DatapathEBPF, via: lab.ViaEBPFTC},
		{name: "socket", datapath: lab.DatapathKernel, via: lab.ViaEBPFSocket, fromHost: true},
		{name: "socket and per packet", datapath: lab.DatapathEBPF, via: lab.ViaEBPFSocket, fromHost: true},
	}
}

// leg is a way between two places, and what each end sees.
type leg struct {
	name           string
	from, to       string
	target, listen netip.AddrPort
	source         netip.Addr // as the server sees it; any if invalid
}

// legs are what each lab must carry, in one family.
func legs(w way, family int) []leg {
	port := func(addr netip.Addr) netip.AddrPort { return netip.AddrPortFrom(addr, lab.ServicePort) }
	a, b, host := lab.PodAIPs[family], lab.PodBIPs[family], lab.Gateways[family].Addr()
	service := lab.Services()[family].Frontend
	all := []leg{
		{"pod to pod", lab.PodB, lab.PodA, port(a), port(a), b},
		{"pod to pod, back", lab.PodA, lab.PodB, port(b), port(b), a},
		{"pod to host", lab.PodA, lab.Host, port(host), port(host), a},
		{"host to pod", lab.Host, lab.PodA, port(a), port(a), netip.Addr{}},
		{"pod to itself", lab.PodA, lab.PodA, port(a), port(a), a},
	}
	if w.via == lab.ViaNone {
		return all
	}
	all = append(all,
		leg{"cluster IP", lab.PodB, lab.PodA, service, port(a), b},
		// The pod sees itself, or the service's address in the place of its own.
		leg{"cluster IP, hairpin", lab.PodA, lab.PodA, service, port(a), netip.Addr{}},
	)
	if w.fromHost {
		all = append(all, leg{"cluster IP from the host", lab.Host, lab.PodA, service, port(a), netip.Addr{}})
	}
	return all
}

// TestConformance sends real traffic through each link mode: by the kernel's own
// datapath and ours, to pods, to the host, and to services in each way.
func TestConformance(t *testing.T) {
	s := store(t)
	for _, mode := range podlink.Modes() {
		for _, w := range ways() {
			t.Run(mode.Name()+"/"+w.name, func(t *testing.T) {
				testkit.RequireMode(t, mode.Probe())
				o := options(lab.Options{Link: mode.Name(), Datapath: w.datapath, Via: w.via})
				times := 1
				if o.Datapath == lab.DatapathEBPF && o.Via == lab.ViaEBPFSocket {
					times = 2 // which shows that the first has left nothing in the way
				}
				for range times {
					testLegs(t, s, o, w)
					if left := leftovers(t, o.Name, s.Dir); len(left) > 0 {
						t.Errorf("left behind: %q", left)
					}
				}
			})
		}
	}
}

func testLegs(t *testing.T, s lab.Store, o lab.Options, w way) {
	t.Run("lab", func(t *testing.T) {
		l := up(t, s, o)
		clients := map[string]*client{}
		for _, at := range l.Places() {
			if at == lab.Host || at == lab.PodA || at == lab.PodB {
				clients[at] = startClient(t, l, at)
			}
		}
		for family, name := range []string{"IPv4", "IPv6"} {
			for _, leg := range legs(w, family) {
				t.Run(leg.name+"/"+name, func(t *testing.T) { testLeg(t, l, clients[leg.from], leg) })
			}
		}
	})
}

// sizes are the payloads: a transaction, what fills a packet, what makes
// batches of segments, and fragments.
func sizes(v6 bool) map[string][]int {
	headers := 20 + 8
	if v6 {
		headers = 40 + 8
	}
	return map[string][]int{"tcp": {1, 1 << 19}, "udp": {1, podlink.DefaultMTU - headers, 8000}}
}

func testLeg(t *testing.T, l *lab.Lab, from *client, leg leg) {
	for network, payloads := range sizes(leg.target.Addr().Is6()) {
		testkit.Echo(t, place(t, l, leg.to), network, leg.listen.String())
		for _, size := range payloads {
			answer := from.ask(t, question{Network: network, Target: leg.target.String(), Size: size})
			if answer.Error != "" {
				t.Errorf("%s, %d bytes: %s", network, size, answer.Error)
				continue
			}
			if want := fmt.Sprint(leg.target); answer.Peer != want {
				t.Errorf("%s: the client sees %s instead of %s", network, answer.Peer, want)
			}
			seen, err := netip.ParseAddrPort(answer.Seen)
			if err != nil || (leg.source.IsValid() && seen.Addr() != leg.source) {
				t.Errorf("%s: the server sees %q instead of %s", network, answer.Seen, leg.source)
			}
		}
	}
	if leg.target == leg.listen {
		for _, size := range []int{8, 1400} {
			if answer := from.ask(t, question{Network: "icmp", Target: leg.target.Addr().String(), Size: size}); answer.Error != "" {
				t.Errorf("icmp, %d bytes: %s", size, answer.Error)
			}
		}
	}
}
