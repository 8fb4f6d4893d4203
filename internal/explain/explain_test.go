// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mustang/internal/bench/suites"
	"mustang/internal/explain"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/worker"
	"mustang/internal/result"
	"mustang/internal/testkit"
	"mustang/internal/tun"
)

// TestMain also runs the programs that labs start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		var err error
		switch os.Args[1] {
		case tun.RelayCommand:
			err = tun.Relay(context.Background(), os.Args[2:], os.Stdout)
		case load.Command:
			err = worker.Main(context.Background(), os.Args[2:], os.Stdin, os.Stdout)
		default:
			os.Exit(testkit.CheckLeaks(m))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(testkit.CheckLeaks(m))
}

// TestStepsAgreeWithCounters compares the steps of each way to connect pods with the
// kernel's counters of devices, BPF programs and softirqs.
func TestStepsAgreeWithCounters(t *testing.T) {
	testkit.RequireRoot(t)
	found, err := suites.Lookup("pod-links")
	testkit.Succeed(t, err)
	explain.Quick()
	store := lab.Store{Dir: filepath.Join(t.TempDir(), "state")}
	for _, p := range found[0].Paths {
		ebpf, cluster := p.Lab.Datapath == lab.DatapathEBPF, p.Target == result.TargetClusterIP
		if p.Repeats != "" || p.Lab.Offload || p.Lab.BigTCP || p.Lab.Sockmap || ebpf != cluster && p.ID != "veth/cluster-ip/nftables" {
			continue
		}
		if link, _, proxy := strings.Cut(p.ID, "/pod-ip/"); proxy && link != "veth" { // the hooks are the hooks of veth
			continue
		}
		t.Run(p.ID, func(t *testing.T) {
			testkit.RequireMode(t, p.Probe())
			found, err := explain.Run(t.Context(), explain.Options{Suite: "pod-links", Row: p.ID, Count: 400, Store: store})
			testkit.Succeed(t, err)
			e := found[0]
			compareDevices(t, e)
			for _, c := range e.Counters.Programs {
				n := 0
				for _, s := range e.Steps {
					if s.Kind == "program" && s.Name == c.Name {
						n++
					}
				}
				near(t, "program "+c.Name, n, c.Runs)
			}
			n := 0
			for _, s := range e.Steps {
				if s.Kind == "softirq" {
					n++
				}
			}
			if float64(n) > e.Counters.Softirqs+0.2 { // which includes other work of the machine
				t.Errorf("%d softirqs, the kernel counts %.2f", n, e.Counters.Softirqs)
			}
		})
	}
}

// compareDevices compares the steps at devices with counters. A packet that a device hands to another one (a macvlan
// device, a peer) is received there without a step of its own, and the first device does not count it.
func compareDevices(t *testing.T, e explain.Explanation) {
	t.Helper()
	type end struct{ place, device string }
	sent, received := map[end]int{}, map[end]int{}
	last := end{}
	for _, s := range e.Steps {
		at := end{s.Place, s.Device}
		switch s.Kind {
		case "transmit":
			sent[at]++
			last = end{}
		case "receive":
			received[at]++
			last = at
		case "tcp", "hook":
			if at != last && (s.Kind == "tcp" || s.Name == "prerouting") {
				received[at]++
				last = at
			}
		}
	}
	for _, d := range e.Counters.Devices {
		at := end{d.Place, d.Device}
		near(t, d.Place+" "+d.Device+" transmits", sent[at], d.Transmitted)
		if d.Received > 0.3 {
			near(t, d.Place+" "+d.Device+" receives", received[at], d.Received)
		}
	}
}

// near fails unless a number of steps matches a counter. The counter includes the set-up of the connection and
// acknowledgements of their own.
func near(t *testing.T, what string, steps int, counted float64) {
	t.Helper()
	testkit.Check(t, !(math.Abs(float64(steps)-counted) > 0.3),
		"%s: %d steps, the kernel counts %.2f", what, steps, counted)
}
