// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// The samples "recorded-" are of real runs on a busy machine with two CPUs, with two samples of each
// connection and six ratios of each comparison.

// TestMethodIsTrue checks the sentences on the rounds, and on how to repeat the run.
func TestMethodIsTrue(t *testing.T) {
	r := reportOf(t, sample(t, "recorded-pod-links"))
	var facts strings.Builder
	for _, group := range r.Facts {
		for _, fact := range group.Facts {
			facts.WriteString(fact.Name + ": " + fact.Value + "\n")
		}
	}
	checkSays(t, facts.String(), []string{"slow rows take part in fewer rounds", "Rounds: 11 to 84, by the row",
		"iptables: v1.8.9 (nf_tables)", "nft: v1.0.6"},
		[]string{"every row once", "iptables: iptables"})
	checkSays(t, r.Command, []string{"--time"}, []string{"--slice"})
	checkSays(t, reportOf(t, sample(t, "turns")).Command, []string{"--slice 10ms"}, nil)
}

// TestAnswersTheQuestion checks that the answer of a suite fits its question.
func TestAnswersTheQuestion(t *testing.T) {
	for name, want := range map[string][]string{
		"two-cpus": {"Throughput, Two CPUs against one: ratio 9 to 22 % in 7 pairs; no difference found in 7."},
		"pod-links-ipv6": {"Request/response, IPv6 against IPv4: ratio 95.7 to 98.6 % in 5 pairs; no difference found in 5.",
			"veth (IPv6) iptables both costs", "macvlan (IPv6) 30.7 "},
		"latency":   {"macvlan is the fastest for requests", "macvlan 18.2 0.4 (0.3 to 0.5)"},
		"engines":   {"Throughput, iperf3 against native: ratio 83 to 119 % in 4 pairs; no difference found in 4."},
		"switching": {"Open vSwitch (in user space) against a Linux bridge: ratio 1.2 to 3.5 % in 6 pairs"},
	} {
		t.Run(name, func(t *testing.T) {
			f := sample(t, "recorded-"+name)
			checkSays(t, strings.Join(strings.Fields(briefOf(t, f, 0)), " "), want, []string{"better in 0"})
			checkSays(t, wordsOf(pageOf(t, f)), want[:1], nil)
		})
	}
}

// TestLongNotesLeaveTheTable checks that the best link keeps its line where notes take room.
func TestLongNotesLeaveTheTable(t *testing.T) {
	f := sample(t, "recorded-pod-links")
	f.Run.Notes = slices.Repeat([]string{strings.Repeat("A long note. ", 14)}, 2)
	checkSays(t, briefOf(t, f, 0), []string{"\n  macvlan "}, nil)
}

// TestFailuresOfOneReason checks that a reason which names each row's own lab is one line, cut between words.
func TestFailuresOfOneReason(t *testing.T) {
	f := sample(t, "recorded-switching")
	out := strings.Join(strings.Fields(briefOf(t, f, 0)), " ")
	checkSays(t, out, []string{"and 6 more: apt-get download: exit status 100: E: Failed to fetch"},
		[]string{"bench-1825"})
	n := strings.Count(out, "failed: ")
	testkit.Check(t, n == 1, "%d lines on failures:\n%s", n, out)
	testkit.Check(t, !regexp.MustCompile(`\S…`).MatchString(out), "a word is cut:\n%s", out)
}
