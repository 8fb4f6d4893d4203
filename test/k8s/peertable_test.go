// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"mustang/internal/bench/stats"
	"mustang/internal/testkit"
	"mustang/test/k8s/internal/cluster"
)

// TestPeersTable makes the tables of figures in which flannel is better at one, worse at one, and alike in one.
func TestPeersTable(t *testing.T) {
	var m measured
	for i := range 6 {
		drift := 1 + float64(i)/100
		m.Turns = append(m.Turns,
			turn{Number: i, Peer: "mustang-vxlan", Figures: map[string]figure{
				"pod-ip/two-nodes tcp_rr": {50000 * drift, 40 * drift}, serviceChange: {Value: 20 * drift},
				"host/two-nodes tcp_rr": {100, 10}}},
			turn{Number: i, Peer: "flannel-vxlan", Figures: map[string]figure{
				"pod-ip/two-nodes tcp_rr": {40000 * drift * (1 + float64(i%2)/100), 30 * drift * (1 + float64(i%2)/100)},
				serviceChange:             {Value: 20 * drift * (1 + float64(i%3-1)/10)},
				"host/two-nodes tcp_rr":   {104, 10}}})
	}
	m.Turns = append(m.Turns,
		turn{Number: 6, Peer: "kube-router", Policed: &cluster.Policed{Denied: 10, Leaked: 2, Allowed: 2,
			Last: 1500 * time.Millisecond, First: []time.Duration{time.Millisecond, 3 * time.Millisecond},
			Started: 4 * time.Second}},
		turn{Number: 7, Peer: "kube-router", Policed: &cluster.Policed{Denied: 10, Allowed: 1,
			First: []time.Duration{2 * time.Millisecond}, Started: 4 * time.Second}})
	path := write(t, "top\n"+peersBegin+"\nold\n"+peersEnd+"\nend\n")
	testkit.Succeed(t, m.replace(path))
	data := testkit.Must(os.ReadFile(path))(t)
	for _, want := range []string{
		"top\n" + peersBegin + "\n\n## Where", "Of 3 figures, another network is better than Mustang in 1, and worse in 1.\n",
		"| flannel, VXLAN; kube-proxy, nftables | pod to pod, two nodes | CPU µs per request | 0.75 | 0.75 to 0.76 |\n",
		"figures differ by up to 4 %", "Turns: 6.\n",
		"| flannel, VXLAN; kube-proxy, nftables | 41,199 ±2.2 % | **30.9 ±2.2 %** | – | – | – | – |\n",
		"| kube-router, BGP; kube-proxy, nftables | 20 | 2 | 1500 | 2.0 | 3.0 | 2.9 |\n", "| Mustang, veth, VXLAN | 20.5 ±", "\n" + peersEnd + "\nend\n",
	} {
		testkit.Check(t, strings.Contains(string(data), want), "no %q in\n%s", want, data)
	}
	testkit.Check(t, !strings.Contains(string(data), "old"), "the old text is there:\n%s", data)
	err := m.replace(write(t, "no lines"))
	testkit.Check(t, err != nil, "a document without lines is taken")
}

func TestCell(t *testing.T) {
	for want, e := range map[string]stats.Estimate{
		"–":           {},
		"1,234,567":   {Value: 1234567, Rounds: 1},
		"999":         {Value: 999.4, Rounds: 1},
		"12.3 ±8.1 %": {Value: 12.345, Rounds: 3, Interval: &[2]float64{11.5, 13.345}},
		"0.123 ±22 %": {Value: 0.1234, Rounds: 3, Interval: &[2]float64{0.1, 0.15}},
	} {
		got := cell(e)
		testkit.Check(t, got == want, "%+v is %q, want %q", e, got, want)
	}
}

func TestComparisonFlags(t *testing.T) {
	for args, want := range map[string]bool{"": true, "-peers bridge,kube-router -time 1s": true, "-peers cilium": false,
		"-o": false, "more": false} {
		var said strings.Builder
		o, ok := (&runner{stderr: &said}).comparisonOf(strings.Fields(args))
		testkit.Check(t, ok == want && (!ok || len(o.peers) > 1), "%q: %t, %d networks: %s", args, ok, len(o.peers), &said)
	}
}
