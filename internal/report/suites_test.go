// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"
	"testing"

	"mustang/internal/result"
)

// said joins all answers of a file of one suite.
func said(f result.File) string {
	var b strings.Builder
	for _, a := range newView(f).suites[0].answers() {
		b.WriteString(a.Name + ": " + a.Lead + " " + strings.Join(a.More, " ") + "\n")
	}
	return strings.ReplaceAll(b.String(), "\u00a0", " ")
}

// TestSuiteAnswers checks what is said of each suite, and that without enough
// rounds nothing is claimed.
func TestSuiteAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		file        result.File
		want, never []string
	}{
		"interfaces": {file: oneSuite(suiteInterfaces), want: []string{
			"loopback and host-ip are tied as the fastest of 11 ways", "loopback ~ host-ip, host-to-container, veth/pod-ip ~ bridge/pod-ip",
			"The other end: tun/pod-ip with 3.333 Gbit/s, against loopback: 93.3 % slower", "address against 127.0.0.1: no difference found",
			"by 127.0.0.1 against the host's address: 45.7 % slower (45.4 to 46.2)",
		}, never: []string{"(again)", "/again"}},
		"latency": {file: oneSuite(suiteLatency), want: []string{
			"more time per transaction than host: veth-bridge-nat 12.5 % (11.8 to 13.5), veth 9.2 %", "No difference to host found: macvlan",
			"host itself: 28,736 transactions/s, 34.8 µs on average", "1 way was skipped or failed",
		}, never: []string{"slower", "faster", "ipvlan"}},
		"switching": {file: oneSuite(suiteSwitching), want: []string{
			"of 9 pairs, Open vSwitch is faster than a Linux bridge in 1 and slower in 7; no difference was found in 1",
			"On one host, Open vSwitch against a bridge: namespaces by veth: no difference found", "virtual machines: 6.4 % slower",
			"VXLAN, against the same without: 18.8 % (bridge/veth) to 29.2 % slower (ovs/vm (tcg))",
			"Two hosts, against the same on one: 23.1 % (bridge/veth)", "Throughput, 3 TCP streams: ", "UDP throughput, 1 UDP stream: ",
		}},
		"docker": {file: oneSuite(suiteDocker), want: []string{
			"slower than host-to-host: published-port/two-hosts 5.3 % (4.8 to 6.2)", "No difference to host-to-host found: host-mode",
			"Faster than host-to-host: published-port/same-host 154.0 %", "Docker's proxy against rules alone: about 51.2 % slower by the medians",
		}},
		"cni": {file: oneSuite(suiteCNI), want: []string{
			"ADD, one at a time: mustang-veth and mustang-bridge are tied as the fastest of 5 plugins", "which has the lowest median (4.200 ms",
			"1 other plugin was skipped", "No difference to bridge found: macvlan.", "Less time than bridge: mustang-veth 70.0 % (69.8 to 70.3)",
			"99 of 100 calls took less than: bridge 22.4 ms, macvlan 22.4 ms, mustang-veth 6.72 ms",
			"With services per packet too, mustang-veth: 16.7 % more time", "DEL, 100 at once: ", "Calls done in a second: bridge 71.4,",
		}, never: []string{"slower", "Gbit", "faster than", "again"}},
		"few cni": {file: truncated(oneSuite(suiteCNI), 3), want: []string{"Too few rounds to tell from bridge: macvlan, mustang-veth", "too few to say which plugin is the best"},
			never: []string{"less time", "more time"}},
		"few interfaces": {file: truncated(oneSuite(suiteInterfaces), 3), want: []string{"too few to say which way is the best", "too few rounds to tell"},
			never: []string{"slower", "is the fastest", " ~ "}},
		"few latency":   {file: truncated(oneSuite(suiteLatency), 3), want: []string{"too few rounds to tell from host: veth-bridge-nat"}, never: []string{"more time", "12.5"}},
		"few switching": {file: truncated(oneSuite(suiteSwitching), 3), want: []string{"too few rounds to say"}, never: []string{"slower", "faster than"}},
		"few docker":    {file: truncated(oneSuite(suiteDocker), 3), want: []string{"too few rounds to tell"}, never: []string{"slower", "Faster"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := said(tc.file)
			for _, want := range tc.want {
				if !strings.Contains(got, want) {
					t.Errorf("%s\ndoes not say %q", got, want)
				}
			}
			for _, never := range tc.never {
				if strings.Contains(got, never) {
					t.Errorf("%s\nsays %q", got, never)
				}
			}
		})
	}
}

// TestNoReference checks what is said where the way that others are held against
// has no figure.
func TestNoReference(t *testing.T) {
	for _, name := range []string{suiteLatency, suiteDocker} {
		f := oneSuite(name)
		first := f.Rows[0].ID
		for i := range f.Rows {
			if row := &f.Rows[i]; row.ID == first {
				row.Status, row.Reason, row.Samples, row.CI95, row.Median, row.LatencyUS = result.StatusFailed, "no", nil, nil, 0, nil
			}
		}
		f.Run.Comparisons = nil
		if got := said(f); !strings.Contains(got, first+" has no figure") {
			t.Errorf("%s: %s", name, got)
		}
		tableOf(t, f, TableOptions{Width: 80})
		htmlOf(t, f)
	}
}

// TestCountedSuites checks that suites of counted instructions speak of no time.
func TestCountedSuites(t *testing.T) {
	for _, name := range []string{suiteInterfaces, suiteLatency, suiteSwitching, suiteDocker} {
		f := oneSuite(name)
		f.Run.Clock, f.Run.DurationSeconds, f.Run.WarmupSeconds = result.ClockInstructions, 0, 0
		f.Rows = slices.DeleteFunc(f.Rows, func(r result.Row) bool { return r.Key().Flows > 1 })
		for i := range f.Rows {
			row := &f.Rows[i]
			row.Unit, row.LatencyUS, row.CPUUSPerUnit, row.Offered, row.LostShare = result.UnitPerTransaction, nil, 0, 0, 0
		}
		for where, got := range map[string]string{"table": tableOf(t, f, TableOptions{Wide: true}), "page": plainText(htmlOf(t, f))} {
			for _, never := range []string{"faster", "slower", "fastest", "time per transaction", "CPU µs", "on average", "Longer", "it takes longer"} {
				if strings.Contains(got, never) {
					t.Errorf("%s: %s says %q", name, where, never)
				}
			}
		}
	}
}

// TestComparisonsOfSuites checks that a comparison stays with the suite, and the
// number of flows, that it is of, though others have rows of the same names.
func TestComparisonsOfSuites(t *testing.T) {
	f := allSuites()
	total := 0
	for _, s := range newView(f).sets {
		for _, c := range s.comparisons {
			total++
			if s.entry(c.Numerator) == nil || s.entry(c.Denominator) == nil || c.Suite != s.suite || max(c.Flows, 1) != s.flows {
				t.Errorf("%s over %s of %s is among those of %s %s", c.Numerator, c.Denominator, c.Suite, s.suite, s.name)
			}
		}
	}
	if total != len(f.Run.Comparisons) {
		t.Errorf("%d comparisons shown of %d", total, len(f.Run.Comparisons))
	}
}

// TestPassed checks that only devices that carried the traffic are named.
func TestPassed(t *testing.T) {
	out := tableOf(t, oneSuite(suiteLatency), TableOptions{})
	for _, want := range []string{"through host-b (uplink, mst-b), host-a (uplink), pod-b (eth0)", "2 netfilter hooks: host-b: ip mustang-nat postrouting"} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("the table does not say %q", want)
		}
	}
	if strings.Contains(out, "lo)") || strings.Contains(out, "(lo") {
		t.Error("a device with six packets is said to be passed")
	}
}

// TestGuestsAreMarked checks that rows of emulated machines say so wherever they
// are named.
func TestGuestsAreMarked(t *testing.T) {
	page := plainText(htmlOf(t, oneSuite(suiteSwitching)))
	if !strings.Contains(page, "same-host/bridge/vm (tcg)") || !strings.Contains(page, "(tcg): the pods are virtual machines whose processors") {
		t.Error("the page does not say that guests were emulated")
	}
	for variant, want := range map[string]string{"tcg": " (tcg)", "user-space, KVM": " (kvm)", "tcgx": "", "": ""} {
		if got := guestMark(result.Row{Variant: variant}); got != want {
			t.Errorf("%q: %q, want %q", variant, got, want)
		}
	}
}

// TestUserSpaceIsSaid checks that figures of Open vSwitch's slow datapath are not
// taken for those of the one in the kernel.
func TestUserSpaceIsSaid(t *testing.T) {
	f := oneSuite(suiteSwitching)
	for i := range f.Rows {
		if strings.Contains(f.Rows[i].ID, "ovs") {
			f.Rows[i].Variant = strings.TrimSpace("user-space " + f.Rows[i].Variant)
		}
	}
	for where, got := range map[string]string{"table": tableOf(t, f, TableOptions{}), "page": plainText(htmlOf(t, f))} {
		for _, want := range []string{"Open vSwitch (in user space) is faster than a Linux bridge in 1", "Open vSwitch forwarded in user space"} {
			if !strings.Contains(strings.Join(strings.Fields(got), " "), want) {
				t.Errorf("%s does not say %q", where, want)
			}
		}
	}
	if strings.Contains(said(oneSuite(suiteSwitching)), "user space") {
		t.Error("the kernel's datapath is taken for the one in user space")
	}
}

// TestFarIntervals checks that one wild interval does not flatten a chart, and that
// the reader is told.
func TestFarIntervals(t *testing.T) {
	f := oneSuite(suiteLatency)
	const words = "reach far beyond the ratios are cut off"
	if strings.Contains(plainText(htmlOf(t, f)), words) {
		t.Error("an ordinary interval is cut off")
	}
	for i := range f.Run.Comparisons {
		if c := &f.Run.Comparisons[i]; c.Numerator == "veth" {
			c.Ratios[0], c.CI95 = 0.0001, &[2]float64{0.0001, c.CI95[1]}
		}
	}
	marks, _, cut := newView(f).sets[0].referenceMarks()
	if !cut || !strings.Contains(plainText(htmlOf(t, f)), words) {
		t.Error("the reader is not told that an interval is cut off")
	}
	for _, m := range marks {
		if m.high > 3 {
			t.Errorf("%s reaches to %g", m.label, m.high)
		}
	}
}
