// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// madeUpSuite has rows of two links and one that stands alone.
func madeUpSuite() Suite {
	s := Suite{Name: "made-up", workloads: []workload{tcpStreams(1), tcpRR()}}
	for _, id := range []string{
		"loopback", "veth/pod-ip", "veth/pod-ip/again", "veth/cluster-ip/iptables", "veth/cluster-ip/nftables",
		"veth+ebpf/pod-ip", "veth+ebpf/cluster-ip", "tun/pod-ip", "tun/cluster-ip/nftables",
	} {
		s.paths = append(s.paths, path{id: id})
	}
	return s
}

func TestSelected(t *testing.T) {
	for _, test := range []struct {
		only  []string
		rows  int
		wrong string
	}{
		{nil, 18, ""},
		{[]string{"veth"}, 8, ""},
		{[]string{"veth/pod-ip tcp_rr"}, 1, ""},
		{[]string{"veth/pod-ip"}, 4, ""}, // again begins with it
		{[]string{"*/cluster-ip/nftables"}, 4, ""},
		{[]string{"veth", "veth/pod-ip", "loopback"}, 10, ""},
		{[]string{"veth+ebpf/*"}, 4, ""},
		{[]string{"vet"}, 0, "vet"},
		{[]string{"veth", "nope"}, 0, "nope"},
		{[]string{"["}, 0, "["},
	} {
		cells, err := Options{Suites: []Suite{madeUpSuite()}, Only: test.only}.selected()
		if test.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), test.wrong) {
				t.Errorf("%q: error %v, want one that names %q", test.only, err, test.wrong)
			}
			continue
		}
		if err != nil || len(cells) != test.rows {
			t.Errorf("%q: %d rows, %v; want %d", test.only, len(cells), err, test.rows)
		}
	}
}

// TestPodLinksRows holds the suite to the rows that it promises.
func TestPodLinksRows(t *testing.T) {
	want := []string{"loopback", "host-to-pod", "veth/pod-ip/again"}
	for _, link := range []string{
		"veth", "bridge-call-off", "bridge-call-on", "macvlan", "ipvlan-l2", "ipvlan-l3", "ipvlan-l3s", "netkit", "netkit-l2",
		"ovs-veth", "ovs-internal", "tun", "tun-offload",
	} {
		want = append(want, link+"/pod-ip", link+"/cluster-ip/iptables", link+"/cluster-ip/nftables", link+"/cluster-ip/ebpf-socket")
	}
	for _, link := range []string{
		"veth", "macvlan", "ipvlan-l2", "ipvlan-l3", "ipvlan-l3s", "netkit", "netkit-l2", "ovs-veth", "ovs-internal", "tun",
	} {
		want = append(want, link+"+ebpf/pod-ip", link+"+ebpf/cluster-ip")
	}
	have := map[string]bool{}
	for _, row := range podLinks().Rows() {
		if have[label(row)] {
			t.Errorf("%s is there twice", label(row))
		}
		have[label(row)] = true
	}
	for _, id := range want {
		for _, workload := range podLinks().workloads {
			if !have[id+" "+workload.String()] {
				t.Errorf("%s %s is missing", id, workload)
			}
			delete(have, id+" "+workload.String())
		}
	}
	if len(have) > 0 {
		t.Errorf("more than promised: %v", have)
	}
	ids := map[string]bool{}
	for _, p := range podLinks().paths {
		ids[p.id] = true
	}
	for _, p := range podLinks().pairs {
		if !ids[p.numerator] || !ids[p.denominator] {
			t.Errorf("pair %q compares %s and %s, which are no rows", p.name, p.numerator, p.denominator)
		}
	}
}

func TestDefaults(t *testing.T) {
	o, err := Options{Suites: []Suite{podLinks()}, Quick: true}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	each := o.Duration + o.Warmup + overhead
	rows := 0
	for _, row := range o.Suites[0].Rows() {
		if slices.Contains([]string{"host", "veth", "bridge", "macvlan", "tun"}, row.Link) { // which every machine has
			rows++
		}
	}
	if total := time.Duration(o.Rounds*rows) * each; total > 50*time.Second {
		t.Errorf("a quick run is planned to take %v, want well under a minute", total)
	}
	if o.Rounds < 6 {
		t.Errorf("%d rounds give no interval", o.Rounds)
	}
	for _, wrong := range []Options{{Rounds: -1}, {Duration: time.Millisecond}, {Duration: -time.Second}, {Seed: 1 << 60}} {
		wrong.Suites = []Suite{podLinks()}
		if wrong.Validate() == nil {
			t.Errorf("%+v is taken", wrong)
		}
	}
}

// TestWireOptions has each wire where it can't be.
func TestWireOptions(t *testing.T) {
	for culprit, o := range map[string]Options{
		"":                          {Suites: Suites(), WireRate: 1e10, WireDelay: time.Millisecond},
		"pod-links crosses a wire":  {Suites: []Suite{podLinks()}, WireRate: 1e10},
		"docker crosses a wire":     {Suites: []Suite{docker()}, Only: []string{"published-port/localhost"}, WireDelay: 1e6},
		"wire rate 7":               {Suites: []Suite{latency()}, WireRate: 7},
		"wire delay -1s":            {Suites: []Suite{docker()}, WireDelay: -time.Second},
		"wire delay 1ns: want 1µs ": {Suites: []Suite{switching()}, WireDelay: 1},
	} {
		err := o.Validate()
		if culprit == "" && err == nil {
			continue
		}
		if culprit == "" || err == nil || !strings.Contains(err.Error(), culprit) {
			t.Errorf("error %v, want one that names %q", err, culprit)
		}
	}
}
