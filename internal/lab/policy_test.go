// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"mustang/internal/lab"
	"mustang/internal/testkit"
)

// policyWays are the implementations of network policies.
func policyWays(rules int) map[string]lab.Options {
	return map[string]lab.Options{
		lab.ViaIPTables: {Link: "veth", Policy: lab.ViaIPTables, PolicyRules: rules},
		lab.ViaNFTables: {Link: "veth", Policy: lab.ViaNFTables, PolicyRules: rules},
		lab.ViaEBPFTC:   {Link: "veth", Datapath: lab.DatapathEBPF, Policy: lab.ViaEBPFTC, PolicyRules: rules},
	}
}

// denials returns how many packets a lab's policy has denied.
func denials(t *testing.T, l *lab.Lab) uint64 {
	t.Helper()
	counts := testkit.Must(l.RuleCounters())(t)
	if d := l.Datapath(); d != nil {
		counters := testkit.Must(d.Flows().Counters())(t)
		for _, c := range counters {
			if c.Name == "drop_policy_ingress" {
				return c.Packets
			}
		}
	}
	return counts["denied"]
}

// wantDenied waits until a packet to the port that is not allowed was denied.
func wantDenied(t *testing.T, l *lab.Lab) {
	t.Helper()
	before := denials(t, l)
	testkit.Succeed(t, l.Knock())
	for deadline := time.Now().Add(10 * time.Second); denials(t, l) == before; {
		testkit.Require(t, !time.Now().After(deadline), "no packet was denied")
	}
}

// TestPolicyRules builds labs with equivalent network policies: pod-b reaches only the port that the last rule
// allows, until the policy changes or is gone.
func TestPolicyRules(t *testing.T) {
	s := store(t)
	for _, rules := range []int{1, 300} {
		for via, o := range policyWays(rules) {
			t.Run(fmt.Sprintf("%s/%d", via, rules), func(t *testing.T) {
				l := up(t, s, options(o))
				a, b := place(t, l, lab.PodA), place(t, l, lab.PodB)
				allowed := netip.AddrPortFrom(lab.PodAIPs[0], lab.PlainPort)
				denied := netip.AddrPortFrom(lab.PodAIPs[0], lab.DeniedPort)
				testkit.Echo(t, a, "tcp", allowed.String())
				testkit.Echo(t, a, "tcp", denied.String())
				reaches(t, b, allowed, true)
				wantDenied(t, l)
				testkit.Succeed(t, l.AllowDenied(t.Context(), true))
				reaches(t, b, denied, true)
				testkit.Succeed(t, l.AllowDenied(t.Context(), false))
				wantDenied(t, l)
				testkit.Succeed(t, l.ClearPolicy(t.Context()))
				reaches(t, b, denied, true)
				testkit.Succeed(t, l.WritePolicy(t.Context()))
				reaches(t, b, allowed, true)
				counts, err := l.RuleCounters()
				if byRules := l.Datapath() == nil; err != nil || byRules && (counts["allowed"] == 0 || counts["established"] == 0) {
					t.Errorf("rules have counted %v, %v", counts, err)
				}
			})
		}
	}
}
