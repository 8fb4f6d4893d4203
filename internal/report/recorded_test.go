// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The samples "recorded-" are of real runs on a busy machine with two CPUs, with two samples of each
// connection and six ratios of each comparison.

// TestCostIsOfNamedComparisons checks that a cluster IP that is not compared with the pod IP, since
// that met other rules, has no cost where both are neighbours in the ranking.
func TestCostIsOfNamedComparisons(t *testing.T) {
	f := sample(t, "recorded-pod-links")
	for _, c := range f.Run.Comparisons {
		if c.Numerator == "bridge-call-on/cluster-ip/nftables" && c.Denominator == "bridge-call-on/pod-ip" && c.Ranking {
			checkSays(t, pageOf(t, f), nil, []string{"1.026"})
			if out := textOf(t, f, wide()); regexp.MustCompile(`bridge call-on +cluster IP +nftables .*1\.026`).MatchString(out) {
				t.Error("the table has a cost")
			}
			return
		}
	}
	t.Error("the sample has no such comparison")
}

// TestMethodIsTrue checks what is said of the rounds, and of how to repeat the run.
func TestMethodIsTrue(t *testing.T) {
	r := reportOf(t, sample(t, "recorded-pod-links"))
	var facts strings.Builder
	for _, group := range r.Facts {
		for _, fact := range group.Facts {
			facts.WriteString(fact.Name + ": " + fact.Value + "\n")
		}
	}
	checkSays(t, facts.String(), []string{"slow rows take part in fewer rounds", "Rounds: 11 to 84, by the row", "iptables: v1.8.9 (nf_tables)", "nft: v1.0.6"},
		[]string{"every row once", "iptables: iptables"})
	checkSays(t, r.Command, []string{"--time"}, []string{"--slice"})
	checkSays(t, reportOf(t, sample(t, "turns")).Command, []string{"--slice 10ms"}, nil)
}

// TestCPUTimeOfAllRows checks that rows in the kernel can be told apart beside one in user space.
func TestCPUTimeOfAllRows(t *testing.T) {
	f := sample(t, "recorded-pod-links")
	logarithmic := 0
	for _, group := range reportOf(t, f).Suites[0].Charts {
		for _, c := range group.Figures {
			if group.ID == "cpu" && c[0].Log {
				logarithmic++
			}
		}
	}
	if logarithmic == 0 {
		t.Error("no chart of the CPU time has a logarithmic axis")
	}
	checkSays(t, wordsOf(pageOf(t, f)), nil, []string{"steadier"})
}

// TestNoAdvice checks that runs that say themselves that they are no base for claims choose nothing,
// and that the page has the advice of the others.
func TestNoAdvice(t *testing.T) {
	for _, name := range []string{"recorded-pod-links", "recorded-workloads", "recorded-latency"} {
		f := sample(t, name)
		for where, got := range map[string]string{"answer": briefOf(t, f, 0), "page": wordsOf(pageOf(t, f))} {
			t.Run(name+" "+where, func(t *testing.T) {
				checkSays(t, got, []string{"This run names no best way"}, []string{"On this machine choose", "kube-proxy must stay"})
			})
		}
	}
	quiet := sample(t, "recorded-latency")
	quiet.Run.Quick = false
	for _, got := range []string{briefOf(t, quiet, 0), wordsOf(pageOf(t, quiet))} {
		checkSays(t, got, []string{"On this machine choose macvlan."}, nil)
	}
	checkSays(t, strings.Join(strings.Fields(briefOf(t, sample(t, "recorded-pod-links"), 0)), " "),
		[]string{"the same path in the kernel measured twice may differ by 16.6 % in throughput. Others kept 1.9 CPUs busy."}, nil)
}

// TestOneSetOfWords checks that a mark, a name and a figure have the same words everywhere.
func TestOneSetOfWords(t *testing.T) {
	const none, few = "~ not significant (Holm-corrected)", "? cannot tell: too few rounds, noise or loss."
	for _, name := range []string{"recorded-pod-links", "recorded-two-cpus", "recorded-pod-links-ipv6", "recorded-switching"} {
		f := sample(t, name)
		for where, got := range map[string]string{"answer": briefOf(t, f, 0), "text": textOf(t, f, wide()), "page": wordsOf(pageOf(t, f))} {
			t.Run(name+" "+where, func(t *testing.T) {
				got = strings.Join(strings.Fields(got), " ")
				never := []string{"told apart", "median (", "veth + eBPF", ", IPv6", "1.026 tied", "“tied”"}
				if strings.Contains(got, "0~") {
					checkSays(t, got, []string{none}, never)
				}
				if strings.Contains(got, "0?") || strings.Contains(got, "0 ?") {
					checkSays(t, got, []string{few}, never)
				}
				checkSays(t, got, nil, never)
			})
		}
	}
	checkSays(t, strings.Join(strings.Fields(textOf(t, sample(t, "recorded-two-cpus"), wide())), " "), []string{
		"Two CPUs against one: this run cannot tell of ratios of bridge-call-off/pod-ip 0.22, veth+eBPF/pod-ip 0.22, ",
		"loopback 0.10, veth/cluster-ip/nftables 0.0858: the same path on two CPUs measured twice may differ by a factor of 4.8.",
	}, nil)
}

// TestAnswersTheQuestion checks that the answer of a suite is what its question asks for.
func TestAnswersTheQuestion(t *testing.T) {
	for name, want := range map[string][]string{
		"two-cpus":       {"Throughput on two CPUs was 9 to 22 % of that on one in 7 pairs: this run cannot tell a difference.", "ratio: on two CPUs over on one."},
		"pod-links-ipv6": {"Request/response by IPv6 was 95.7 to 98.6 % of that by IPv4 in 5 pairs: no difference found.", "Gbit/s cost ipt", "macvlan (IPv6) 28.0 ~", "connect eBPF: -o wide"},
		"latency":        {"host takes 17.4 µs; added µs: macvlan 0.4 (0.3 to 0.5), veth 3.1 (2.7 to 3.4)", "macvlan 18.2 0.4 (0.3 to 0.5)"},
		"engines":        {"Throughput by iperf3 was 83 to 119 % of that by the native engine in 4 pairs: no difference found."},
		"switching":      {"Open vSwitch (in user space): 1.2 to 3.5 % of a Linux bridge in 6 pairs"},
	} {
		t.Run(name, func(t *testing.T) {
			f := sample(t, "recorded-"+name)
			checkSays(t, strings.Join(strings.Fields(briefOf(t, f, 0)), " "), want, []string{"better in 0"})
			if name == "latency" { // where the other rows' times are in the tables
				want = []string{"macvlan is the fastest of 4 ways: 0.4 (0.3 to 0.5) µs added to the 17.4 µs of host."}
			}
			checkSays(t, wordsOf(pageOf(t, f)), want[:1], nil)
		})
	}
}

// TestTableHasTheBest checks that the table of a large suite has the best row of each workload, and
// those with a cost of a cluster IP before others.
func TestTableHasTheBest(t *testing.T) {
	f := sample(t, "recorded-pod-links")
	f.Run.Notes = slices.Repeat([]string{strings.Repeat("A long note. ", 14)}, 2) // which take room
	out := briefOf(t, f, 0)
	checkSays(t, out, []string{"\n  macvlan big-tcp ", "\n  veth+eBPF no-big-tcp ", "\n  macvlan "}, []string{"\n  veth big-tcp "})
}

// TestFailuresOfOneReason checks that a reason which names each row's own lab is one line, cut between words.
func TestFailuresOfOneReason(t *testing.T) {
	f := sample(t, "recorded-switching")
	out := strings.Join(strings.Fields(briefOf(t, f, 0)), " ")
	checkSays(t, out, []string{"and 6 more: apt-get download: exit status 100: E: Failed to fetch"}, []string{"bench-1825"})
	if n := strings.Count(out, "failed: "); n != 1 {
		t.Errorf("%d lines on failures:\n%s", n, out)
	}
	if regexp.MustCompile(`\S…`).MatchString(out) {
		t.Errorf("a word is cut:\n%s", out)
	}
}
