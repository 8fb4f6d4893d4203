// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"testing"
	"time"

	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/testkit"
)

// TestBuildOfManyLabs builds more labs at once than there are builders, which fail at once. The race detector watches.
func TestBuildOfManyLabs(t *testing.T) {
	s := testbed{labs: map[lab.Options]*lab.Lab{}, failed: map[lab.Options]error{}, notes: map[lab.Options]string{}}
	var all []lab.Options
	for i := range 10 * builders {
		all = append(all, lab.Options{Topology: fmt.Sprint("none-", i)})
	}
	if err := s.build(t.Context(), append(all, all...)); err != nil || len(s.failed) != len(all) || s.built != len(all) {
		t.Errorf("%v, %d of %d labs failed, %d were built", err, len(s.failed), len(all), s.built)
	}
}

// TestResetKeepsListeners removes a client that has ended: its server still listens, and
// cannot do so twice. Without the server nothing listens.
func TestResetKeepsListeners(t *testing.T) {
	for key, listening := range map[agentKey]int{sharedClient: 1, sharedServer: 0} {
		a, err := load.StartAgent(t.Context(), load.AgentOptions{CPU: -1})
		testkit.Succeed(t, err)
		testkit.Succeed(t, a.Close())
		s := testbed{agents: map[agentKey]*load.Agent{key: a}, listening: map[agentKey]bool{{place: "pod-b"}: true}}
		if err := s.reset(suites.Path{}); err != nil || len(s.agents) > 0 || len(s.listening) != listening {
			t.Errorf("%v: %v, %d agents, %d listeners, want %d", key, err, len(s.agents), len(s.listening), listening)
		}
	}
}

func budgetOf(rounds int) *budget {
	b := newBudget(Options{Rounds: rounds, Progress: quiet()}, time.Now(), 0, 1)
	b.begin()
	return b
}
