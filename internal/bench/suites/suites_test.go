// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"strings"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/result"
)

// TestSuitesNameExistingRows checks that IDs are unique, and that pairs name existing rows.
func TestSuitesNameExistingRows(t *testing.T) {
	for _, s := range List() {
		ids := map[string]bool{}
		for _, p := range s.Paths {
			if ids[p.ID] {
				t.Errorf("%s: %s appears twice", s.Name, p.ID)
			}
			ids[p.ID] = true
		}
		again := 0
		for _, p := range s.Pairs {
			if !ids[p.Numerator] || !ids[p.Denominator] {
				t.Errorf("%s: pair %q of %q and %q, at least one of them unknown", s.Name, p.Name, p.Numerator, p.Denominator)
			}
			if p.AA {
				again++
			}
		}
		if again == 0 {
			t.Errorf("%s: no A/A comparison", s.Name)
		}
		if len(s.Workloads) == 0 {
			t.Errorf("%s: no workloads", s.Name)
		}
	}
	if _, err := Lookup("nope"); err == nil {
		t.Error("Lookup found suite nope")
	}
	if all, err := Lookup(All); err != nil || len(all) != len(List()) {
		t.Errorf("all: %d suites, %v", len(all), err)
	}
}

// TestPodLinksRows checks the rows of suite pod-links.
func TestPodLinksRows(t *testing.T) {
	want := []string{"loopback", "host-to-pod", "veth/pod-ip/again", "ovs-veth/pod-ip/again", "tun/pod-ip/again"}
	for _, link := range []string{
		"veth", "bridge-call-off", "bridge-call-on", "macvlan", "ipvlan-l2", "ipvlan-l3", "ipvlan-l3s", "netkit", "netkit-l2",
		"ovs-veth", "ovs-internal", "tun", "tun-offload",
	} {
		want = append(want, link+"/pod-ip")
		for _, proxy := range []string{"iptables", "nftables", "ebpf-socket"} {
			want = append(want, link+"/cluster-ip/"+proxy)
			if link+proxy != "bridge-call-oniptables" { // whose pod IP has these rules anyway
				want = append(want, link+"/pod-ip/"+proxy)
			}
		}
	}
	for _, link := range []string{
		"veth", "macvlan", "ipvlan-l2", "ipvlan-l3", "ipvlan-l3s", "netkit", "netkit-l2", "ovs-veth", "ovs-internal", "tun",
	} {
		want = append(want, link+"+ebpf/pod-ip", link+"+ebpf/cluster-ip")
	}
	have := map[string]bool{}
	for _, row := range podLinks().Rows() {
		if have[name(row)] {
			t.Errorf("%s appears twice", name(row))
		}
		have[name(row)] = true
	}
	for _, path := range []string{"veth", "veth+ebpf", "bridge-call-off", "macvlan", "macvlan+ebpf"} {
		id := path + "+big-tcp/pod-ip tcp_stream"
		if !have[id] {
			t.Errorf("%s is missing", id)
		}
		delete(have, id)
	}
	for _, id := range want {
		for _, workload := range podLinks().Workloads {
			if !have[id+" "+workload.String()] {
				t.Errorf("%s %s is missing", id, workload)
			}
			delete(have, id+" "+workload.String())
		}
	}
	if len(have) > 0 {
		t.Errorf("unexpected: %v", have)
	}
}

// name returns a row's ID and workload.
func name(row result.Row) string {
	return row.ID + " " + Workload{Name: row.Workload, Flows: row.Flows}.String()
}

// TestCNIConfigurations checks that each path of suite cni has a valid network name, and
// a network of its own.
func TestCNIConfigurations(t *testing.T) {
	networks := map[string]string{}
	for _, p := range cni().Paths {
		network := p.Plugin.Network
		if network == "" || strings.Contains(network, "+") {
			t.Errorf("%s: network %q", p.ID, network)
		}
		if first, ok := networks[p.Plugin.Subnet.String()]; ok && p.Repeats != first {
			t.Errorf("%s and %s share %s", p.ID, first, p.Plugin.Subnet)
		}
		networks[p.Plugin.Subnet.String()] = p.ID
		if p.Plugin.Gateway != lab.Host && p.Plugin.Gateway != lab.Outside {
			t.Errorf("%s: gateway %q", p.ID, p.Plugin.Gateway)
		}
	}
}
