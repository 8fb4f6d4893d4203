// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"net/netip"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/netns"
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

// reaches checks whether a service answers.
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
