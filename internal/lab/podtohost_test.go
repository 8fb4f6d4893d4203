// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"net/netip"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/testkit"
)

// TestPodToHostDatapath has the programs of the lab's datapath see what the pod
// sends to another host, and what comes back.
func TestPodToHostDatapath(t *testing.T) {
	o := options(lab.Options{Topology: lab.TopologyPodToHost, Link: "veth", Datapath: lab.DatapathEBPF})
	l := up(t, store(t), o)
	endpoints, err := l.Datapath().Endpoints()
	if err != nil {
		t.Fatal(err)
	}
	if len(endpoints) != 2 {
		t.Errorf("endpoints are %+v, want both addresses of pod-b", endpoints)
	}
	for _, addr := range lab.Addresses(o, lab.HostA) {
		before := counters(t, l)
		server := testkit.Echo(t, place(t, l, lab.HostA), "tcp", netip.AddrPortFrom(addr, 0).String())
		if _, err := testkit.RoundTrip(t, place(t, l, lab.PodB), "tcp", server.String(), make([]byte, 1<<18)); err != nil {
			t.Fatal(err)
		}
		after := counters(t, l)
		for _, name := range []string{"from_pod", "to_pod", "passed"} {
			if after[name] < before[name]+5 {
				t.Errorf("%v: counter %s went from %d to %d", addr, name, before[name], after[name])
			}
		}
		if after["forward"] != 0 || after["drop_malformed"] != 0 {
			t.Errorf("%v: counters are %v, but there is no service", addr, after)
		}
	}
}

// counters are those of a lab's datapath, by name.
func counters(t *testing.T, l *lab.Lab) map[string]uint64 {
	t.Helper()
	all, err := l.Datapath().Counters()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]uint64{}
	for _, counter := range all {
		out[counter.Name] = counter.Packets
	}
	return out
}
