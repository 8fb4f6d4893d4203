// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"regexp"
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
		for _, c := range group.Charts {
			if group.ID == "cpu" && c.Log {
				logarithmic++
			}
		}
	}
	if logarithmic == 0 {
		t.Error("no chart of the CPU time has a logarithmic axis")
	}
	checkSays(t, wordsOf(pageOf(t, f)), nil, []string{"steadier"})
}
