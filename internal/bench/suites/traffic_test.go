// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"strings"
	"testing"

	"mustang/internal/load"
	"mustang/internal/testkit"
)

// TestTrafficReplacesWorkloads checks the workloads of a suite with chosen traffic.
func TestTrafficReplacesWorkloads(t *testing.T) {
	for _, test := range []struct {
		traffic Traffic
		want    string
	}{
		{Traffic{}, "tcp_stream tcp_rr tcp_crr"},
		{Traffic{Workloads: []string{load.UDPRR, load.UDPStream}}, "udp_rr udp_stream"},
		{Traffic{Flows: 4}, "tcp_stream-4 tcp_rr tcp_crr"},
		{Traffic{Request: 100, Workloads: []string{load.TCPStream, load.TCPRR}}, "tcp_stream tcp_rr (100-byte requests)"},
		{Traffic{Response: 5, Workloads: []string{load.TCPCRR}}, "tcp_crr (5-byte responses)"},
		{Traffic{Direction: DirectionBoth, Workloads: []string{load.TCPStream}}, "tcp_stream tcp_stream (reverse)"},
		{Traffic{Direction: DirectionReverse, Flows: 2, Workloads: []string{load.TCPStream}}, "tcp_stream-2 (reverse)"},
		{Traffic{UnderLoad: true, Workloads: []string{load.TCPRR}}, "tcp_rr tcp_rr (50% load)"},
		{Traffic{UnderLoad: true, Rate: 9, Workloads: []string{load.TCPRR, load.TCPRR}}, "tcp_rr tcp_rr (9/s)"},
	} {
		got, err := test.traffic.Apply([]Suite{podLinks(), cni()})
		testkit.Succeed(t, err)
		var names []string
		for _, w := range got[0].Workloads {
			names = append(names, w.String())
		}
		text := strings.Join(names, " ")
		testkit.Check(t, text == test.want, "%+v: %s, want %s", test.traffic, text, test.want)
		testkit.Check(t, len(got[1].Workloads) == len(cni().Workloads), "the calls of plugins have changed")
	}
}

// TestTrafficNamesCulprit refuses traffic that makes no sense, or that no workload has.
func TestTrafficNamesCulprit(t *testing.T) {
	rr := []string{load.TCPRR}
	for want, traffic := range map[string]Traffic{
		`--workload "nope": want tcp_`:      {Workloads: []string{"nope"}},
		"-P, --flows 4: only streams":       {Workloads: rr, Flows: 4},
		"-P, --flows 65: want 1 to 64":      {Flows: 65},
		"-P, --flows -1: want 1 to 64":      {Flows: -1},
		`--direction "up": want forward`:    {Direction: "up"},
		`--direction "both": only a tcp_`:   {Workloads: rr, Direction: DirectionBoth},
		"--rate needs --latency-under-load": {Rate: 5},
		"--rate -3: want 1 to 10000000":     {UnderLoad: true, Rate: -3},
		"--request-size: invalid size -1":   {Request: -1},
		"--response-size: invalid size 23":  {Workloads: []string{load.UDPRR}, Response: 23},
		"no selected workload has reques":   {Workloads: []string{load.TCPStream}, Request: 5},
		"--request-size: invalid size 104":  {Request: 1<<20 + 1},
		"--request-size: invalid size 655":  {Workloads: []string{load.UDPRR}, Request: 65508},
	} {
		if _, err := traffic.Apply([]Suite{podLinks()}); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want %q", traffic, err, want)
		}
	}
	if _, err := (Traffic{Workloads: rr}).Apply([]Suite{cni()}); err == nil ||
		!strings.Contains(err.Error(), "suite cni carries no traffic: it takes no --workload") {
		t.Errorf("a suite that calls plugins carries traffic: %v", err)
	}
}
