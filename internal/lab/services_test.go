// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"mustang/internal/lab"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// serviceWays are the implementations of services that need no client in a control group.
func serviceWays() map[string]lab.Options {
	return map[string]lab.Options{
		lab.ViaIPTables: {Link: "veth", Via: lab.ViaIPTables},
		lab.ViaNFTables: {Link: "veth", Via: lab.ViaNFTables},
		lab.ViaIPVS:     {Link: "veth", Via: lab.ViaIPVS},
		lab.ViaEBPFTC:   {Link: "veth", Datapath: lab.DatapathEBPF},
	}
}

func reaches(t *testing.T, from *netns.Namespace, to netip.AddrPort, want bool) {
	t.Helper()
	_, err := testkit.RoundTrip(t, from, "tcp", to.String(), []byte("x"))
	testkit.Check(t, (err == nil) == want, "%s answers: %v, want %t", to, err, want)
}

// TestManyServices builds labs with other services, reaches the first, the last and pod-a's own,
// changes one, and removes and writes all.
func TestManyServices(t *testing.T) {
	s := store(t)
	for via, o := range serviceWays() {
		t.Run(via, func(t *testing.T) {
			testkit.RequireMode(t, o.Probe())
			o.Services = 300
			l := up(t, s, options(o))
			a, b := place(t, l, lab.PodA), place(t, l, lab.PodB)
			for port := range uint16(lab.OtherBackends + 1) {
				testkit.Echo(t, a, "tcp", netip.AddrPortFrom(lab.PodAIPs[0], lab.ServicePort+port).String())
			}
			all := l.AllServices(lab.OtherBackends)
			if n := len(all); n != o.Services+1 { // and the one of IPv6
				t.Fatalf("%d services", n)
			}
			first, last := all[0].Frontend, all[len(all)-1].Frontend
			for _, to := range []netip.AddrPort{first, last, lab.Services()[0].Frontend} {
				reaches(t, b, to, true)
			}
			all[0].Backends = service.Backends(netip.AddrPortFrom(lab.PodAIPs[0], 1)) // without a listener
			testkit.Succeed(t, l.ChangeService(t.Context(), all, 0))
			reaches(t, b, first, false)
			reaches(t, b, last, true)
			testkit.Succeed(t, l.ClearServices(t.Context()))
			reaches(t, b, last, false)
			testkit.Succeed(t, l.WriteServices(t.Context(), l.AllServices(lab.OtherBackends)))
			reaches(t, b, first, true)
		})
	}
}

// TestServicesOfTwoHosts reaches the service of pod-a from the other host.
func TestServicesOfTwoHosts(t *testing.T) {
	s := store(t)
	for via, o := range serviceWays() {
		t.Run(via, func(t *testing.T) {
			testkit.RequireMode(t, o.Probe())
			o.Topology, o.Overlay, o.Services = lab.TopologyTwoHosts, lab.OverlayVXLAN, 3
			l := up(t, s, options(o))
			testkit.Echo(t, place(t, l, lab.PodA), "tcp", netip.AddrPortFrom(lab.PodAIPs[0], lab.ServicePort).String())
			reaches(t, place(t, l, lab.PodB), lab.Services()[0].Frontend, true)
		})
	}
}

func policyWays(rules int) map[string]lab.Options {
	return map[string]lab.Options{
		lab.ViaIPTables: {Link: "veth", Policy: lab.ViaIPTables, PolicyRules: rules},
		lab.ViaNFTables: {Link: "veth", Policy: lab.ViaNFTables, PolicyRules: rules},
		lab.ViaEBPFTC:   {Link: "veth", Datapath: lab.DatapathEBPF, Policy: lab.ViaEBPFTC, PolicyRules: rules},
	}
}

// denials returns how many packets a lab's policy has denied.
func denials(t *testing.T, l *lab.Lab) uint64 {
	t.Helper()
	counts := testkit.Must(l.RuleCounters())(t)
	if d := l.Datapath(); d != nil {
		counters := testkit.Must(d.Flows().Counters())(t)
		for _, c := range counters {
			if c.Name == "drop_policy_ingress" {
				return c.Packets
			}
		}
	}
	return counts["denied"]
}

// wantDenied waits until a packet to the port that is not allowed was denied.
func wantDenied(t *testing.T, l *lab.Lab) {
	t.Helper()
	before := denials(t, l)
	testkit.Succeed(t, l.Knock())
	for deadline := time.Now().Add(10 * time.Second); denials(t, l) == before; {
		testkit.Require(t, !time.Now().After(deadline), "no packet was denied")
	}
}

// TestPolicyRules builds labs with equivalent network policies: pod-b reaches only the port that the last rule
// allows, until the policy changes or is gone.
func TestPolicyRules(t *testing.T) {
	s := store(t)
	for _, rules := range []int{1, 300} {
		for via, o := range policyWays(rules) {
			t.Run(fmt.Sprintf("%s/%d", via, rules), func(t *testing.T) {
				l := up(t, s, options(o))
				a, b := place(t, l, lab.PodA), place(t, l, lab.PodB)
				allowed := netip.AddrPortFrom(lab.PodAIPs[0], lab.PlainPort)
				denied := netip.AddrPortFrom(lab.PodAIPs[0], lab.DeniedPort)
				testkit.Echo(t, a, "tcp", allowed.String())
				testkit.Echo(t, a, "tcp", denied.String())
				reaches(t, b, allowed, true)
				wantDenied(t, l)
				testkit.Succeed(t, l.AllowDenied(t.Context(), true))
				reaches(t, b, denied, true)
				testkit.Succeed(t, l.AllowDenied(t.Context(), false))
				wantDenied(t, l)
				testkit.Succeed(t, l.ClearPolicy(t.Context()))
				reaches(t, b, denied, true)
				testkit.Succeed(t, l.WritePolicy(t.Context()))
				reaches(t, b, allowed, true)
				counts, err := l.RuleCounters()
				if byRules := l.Datapath() == nil; err != nil || byRules && (counts["allowed"] == 0 || counts["established"] == 0) {
					t.Errorf("rules have counted %v, %v", counts, err)
				}
			})
		}
	}
}

// TestBigTCPReachesServices sends streams to pod IPs and to services in each way. They arrive unchanged, in
// packets of more than 64 KiB: by IPv6 where the kernel's routers do not drop them.
func TestBigTCPReachesServices(t *testing.T) {
	s := store(t)
	for _, link := range []string{"veth", "bridge", "macvlan", "ipvlan-l2", "netkit"} {
		for _, w := range ways() {
			o, ok := w.options(link)
			if !ok {
				continue
			}
			o.BigTCP = true
			t.Run(link+"/"+w.name, func(t *testing.T) {
				mode := testkit.Must(podlink.Lookup(link))(t)
				testkit.RequireMode(t, mode.Probe())
				l := up(t, s, o)
				server := place(t, l, lab.PodA)
				client := startClient(t, l, lab.PodB)
				for family := range lab.Services() {
					target := netip.AddrPortFrom(lab.PodAIPs[family], lab.ServicePort)
					testkit.Echo(t, server, "tcp", target.String())
					if w.via != lab.ViaNone {
						target = lab.Services()[family].Frontend
					}
					packets := testkit.WatchPackets(t, server, deviceIndex(t, server, l.Device(lab.PodA)), nil)
					testkit.Eventually(t, 30*time.Second, func() error {
						question := question{Network: "tcp", Target: target.String(), Size: streamed}
						answer := client.ask(t, question)
						testkit.Require(t, answer.Error == "", "%v", answer.Error)
						return wantLarge(target.Addr(), packets.Load())
					})
				}
			})
		}
	}
}

const streamed = 16 << 20 // the number of bytes of a stream

// wantLarge checks for packets of more than 64 KiB, or of less to an IPv6 address where routers would drop larger ones.
func wantLarge(to netip.Addr, largest int64) error {
	if largest == 0 || (to.Is4() || rtnl.TakesBigIPv6()) != (largest > rtnl.PacketBytes) {
		return fmt.Errorf("the largest packet to %v has %d bytes", to, largest)
	}
	return nil
}

func deviceIndex(t *testing.T, ns *netns.Namespace, name string) int {
	t.Helper()
	device := testkit.Must(rtnl.In(ns).Device(name))(t)
	return device.Index
}
