// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

func clusterSuite() Suite {
	at := func(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }
	placement := func(pod, service, backend string) ClusterPlacement {
		return ClusterPlacement{
			Host: ClusterEnds{Client: "host-a", Server: "host-b", Listen: at("10.0.0.1:20000")},
			Pod:  ClusterEnds{Client: "a", Server: "b", Listen: at(pod)}, Service: at(service), Backend: at(backend),
		}
	}
	same := placement("10.1.0.1:5200", "10.96.0.1:5201", "10.1.0.1:5201")
	return Cluster(same, placement("10.1.0.2:5200", "10.96.0.2:5201", "10.1.0.2:5201"))
}

// servicePorts returns the ports that any service of a path's lab has, at its own address or at a backend.
func servicePorts(p Path) []uint16 {
	ports := []uint16{lab.ServicePort, lab.PublishedPort}
	l := lab.Lab{Options: p.Lab}
	for backends := range lab.OtherBackends + 2 { // suite services changes the backends of one
		for _, s := range l.AllServices(backends) {
			ports = append(ports, s.Frontend.Port())
			for _, b := range s.Backends {
				ports = append(ports, b.Addr.Port())
			}
		}
	}
	return ports
}

// TestPodIPsHavePortsOfNoService checks that each baseline of services uses a port without a service in its lab. At
// the port of a service, its replies pay part of the service's cost.
func TestPodIPsHavePortsOfNoService(t *testing.T) {
	seen := 0
	for _, s := range append(append(List(), SelfTest()...), clusterSuite()) {
		for _, p := range s.Paths {
			if p.Plugin != nil || p.Target == result.TargetClusterIP || p.Target == result.TargetPublishedPort {
				continue
			}
			seen++
			ports := servicePorts(p)
			for _, port := range []uint16{p.Listen.Port(), p.Connect.Port()} {
				testkit.Check(t, !slices.Contains(ports, port), "%s: %s has port %d, which services have too", s.Name, p.ID, port)
			}
		}
	}
	testkit.Check(t, seen >= 100, "%d rows", seen)
}

// TestAskedPairsDifferInOneThing checks that the two networks of each printed pair differ only in the subject of its
// question.
func TestAskedPairsDifferInOneThing(t *testing.T) {
	asked := map[string]int{}
	for _, s := range append(List(), clusterSuite()) {
		paths := map[string]Path{}
		for _, p := range s.Paths {
			paths[p.ID] = p
		}
		for _, pair := range s.Pairs {
			if pair.Asks == "" {
				continue
			}
			asked[pair.Asks]++
			a, b := paths[pair.Numerator], paths[pair.Denominator]
			fail := func(what string) { t.Errorf("%s: %s (asks %s): %s", s.Name, pair.Name, pair.Asks, what) }
			if pair.AA || a.Client != b.Client || a.Server != b.Server || a.Link != b.Link {
				fail("not the same ends on the same link")
			}
			bigTCP := a.Lab.BigTCP != b.Lab.BigTCP
			if bigTCP != (pair.Asks == result.AsksBigTCP) {
				fail("BIG TCP on one side")
			}
			services := a.Target == result.TargetClusterIP && b.Target == result.TargetPodIP
			ofLab, without := a.Lab, b.Lab
			switch pair.Asks {
			case result.AsksService:
				if !services {
					fail("not a cluster IP by a pod IP")
				}
			case result.AsksProxy, result.AsksTotal:
				if services != (pair.Asks == result.AsksTotal) || without.Via != lab.ViaNone || ofLab.Via == lab.ViaNone {
					fail("not a network with a service proxy by one without")
				}
				if pair.Asks == result.AsksProxy && (a.Connect != b.Connect || a.Listen != b.Listen) {
					fail("not the same address and port")
				}
				ofLab.Via, ofLab.Datapath, ofLab.Services = without.Via, without.Datapath, without.Services
			case result.AsksBigTCP:
				ofLab.BigTCP = without.BigTCP
			default:
				fail("unknown question")
			}
			if ofLab != without {
				fail("the networks differ in more than what is asked")
			}
		}
	}
	for _, question := range []string{result.AsksProxy, result.AsksService, result.AsksTotal, result.AsksBigTCP} {
		testkit.Check(t, asked[question] != 0, "no pair asks %s", question)
	}
}

// TestEachServiceProxyHasBothCosts compares each cluster IP with a pod IP in the same network, and that with a pod IP
// in a network without the service proxy.
func TestEachServiceProxyHasBothCosts(t *testing.T) {
	for _, s := range []Suite{podLinks(), ipv6(), clusterSuite()} {
		for _, p := range s.Paths {
			asks := func(question string) bool {
				return slices.ContainsFunc(s.Pairs, func(pair Pair) bool { return pair.Asks == question && pair.Numerator == p.ID })
			}
			testkit.Check(t, p.Target != result.TargetClusterIP || asks(result.AsksService),
				"%s: %s is compared with no pod IP of its network", s.Name, p.ID)
			ofProxy := s.Name == Default && p.Lab.Via != lab.ViaNone || strings.HasSuffix(p.ID, "/ipv6/pod-ip/"+p.Lab.Via)
			if p.Target == result.TargetPodIP && !p.Lab.BigTCP && !p.Lab.NetfilterCall && ofProxy && !asks(result.AsksProxy) {
				t.Errorf("%s: %s is compared with no pod IP without its service proxy", s.Name, p.ID)
			}
		}
	}
}

// TestUsualRowsAreFew limits the rows that a run of suite pod-links measures without --all: every further row takes
// time from the others.
func TestUsualRowsAreFew(t *testing.T) {
	everywhere := []string{result.LinkHost, "veth", "bridge", "macvlan"} // link modes of every kernel
	rows, all := 0, 0
	for _, p := range podLinks().Paths {
		if p.Extra {
			continue
		}
		all++
		if slices.Contains(everywhere, p.Link) {
			rows++
		}
	}
	testkit.Check(t, rows <= 18 && all <= 24,
		"%d usual rows with veth, bridge and macvlan, %d with all link modes; want 18 and 24 at most", rows, all)
}
