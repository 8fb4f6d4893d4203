// SPDX-License-Identifier: Apache-2.0

package evidence_test

import (
	"strings"
	"testing"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/testkit"
)

// policed returns the observation of 1,000 transactions past a network policy by one of its implementations.
func policed(t *testing.T, via string) evidence.Observation {
	t.Helper()
	if via == lab.ViaEBPFTC {
		o := fitting(t, "veth+ebpf/pod-ip")
		o.Evidence.Connections = 1
		o.Evidence.ProgramRuns["tracked"], o.Evidence.ProgramRuns["drop_policy_ingress"] = 1, 1
		o.Path.Lab.Policy, o.Path.Lab.PolicyRules = via, 1
		return o
	}
	o := fitting(t, "veth/pod-ip")
	o.Tracked = true
	o.Evidence.Rules = map[string]uint64{"established": 2010, "allowed": 1, "denied": 1}
	o.Path.Lab.Policy, o.Path.Lab.PolicyRules = via, 1
	return o
}

// TestPolicyIsProved finds each contradiction of a path past a network policy, and of one without.
func TestPolicyIsProved(t *testing.T) {
	for _, test := range []struct {
		via, name string
		spoil     func(*evidence.Observation)
		finding   string
	}{
		{lab.ViaEBPFTC, "nothing", nil, ""},
		{lab.ViaIPTables, "nothing", nil, ""},
		{lab.ViaNFTables, "nothing", nil, ""},
		{lab.ViaEBPFTC, "not judged", func(o *evidence.Observation) { delete(o.Evidence.ProgramRuns, "tracked") },
			"tracked increased by 0"},
		{lab.ViaEBPFTC, "no row", func(o *evidence.Observation) { o.Evidence.Connections = 0 }, "0 entries"},
		{lab.ViaEBPFTC, "denies nothing", func(o *evidence.Observation) {
			delete(o.Evidence.ProgramRuns,
				"drop_policy_ingress")
		}, "drop_policy_ingress"},
		{lab.ViaEBPFTC, "by rules", func(o *evidence.Observation) { o.Tracked = true }, "tracks"},
		{lab.ViaEBPFTC, "no policy", func(o *evidence.Observation) { o.Path.Lab.Policy = "" }, "has judged 1 connections"},
		{lab.ViaIPTables, "past the rules", func(o *evidence.Observation) { o.Evidence.Rules = nil },
			"counted 0 packets that were allowed"},
		{lab.ViaNFTables, "allowed by no rule", func(o *evidence.Observation) { delete(o.Evidence.Rules, "allowed") },
			"were allowed"},
		{lab.ViaNFTables, "denies nothing", func(o *evidence.Observation) { delete(o.Evidence.Rules, "denied") },
			"were denied"},
		{lab.ViaNFTables, "not established", func(o *evidence.Observation) { o.Evidence.Rules["established"] = 1000 },
			"were established"},
		{lab.ViaIPTables, "not tracked", func(o *evidence.Observation) { o.Tracked = false }, "no entry of the connection"},
		{lab.ViaIPTables, "no policy", func(o *evidence.Observation) { o.Path.Lab.Policy = "" }, "tracks"},
	} {
		t.Run(test.via+" "+test.name, func(t *testing.T) {
			o := policed(t, test.via)
			if test.spoil != nil {
				test.spoil(&o)
			}
			got := strings.Join(o.Findings(), "; ")
			testkit.Check(t, (test.finding != "" || got == "") && strings.Contains(got, test.finding),
				"findings %q, want %q", got, test.finding)
		})
	}
	both := policed(t, lab.ViaNFTables)
	for i, findings := range evidence.FindingsSideBySide(both, both) {
		testkit.Check(t, strings.Contains(strings.Join(findings, "; "), "were allowed, want at least 2"),
			"flow %d of two with the counters of one: findings %q", i, findings)
	}
}
