// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"testing"

	"mustang/internal/bench/stats"
	"mustang/internal/bench/suites"
	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/result"
)

// TestCPUTimeIsOfSamples divides the CPU time of the samples by their own transfer: the
// slices that are no samples, such as those of spoilt rounds, are in neither.
func TestCPUTimeIsOfSamples(t *testing.T) {
	for _, tt := range []struct {
		workload suites.Workload
		want     float64
	}{
		{suites.Workload{Name: load.TCPRR}, 10},
		{suites.Workload{Name: load.TCPStream}, 10e6},
		{suites.Workload{Name: load.TCPRR, Setup: result.Setup{LoadShare: 0.5}}, 0},
	} {
		row := newRow(rowSpec{workload: tt.workload})
		turn := load.SliceResult{Count: 100, Seconds: 0.001, Machine: clock.MachineTime{BusySeconds: 0.001}}
		row.addTurns(stats.Position{}, 0, turn, turn)
		row.addEpoch(load.Measurement{Count: 1000, Units: 1000}, result.Evidence{}, false)
		if got, ok := row.result(); !ok || math.Abs(got.CPUUSPerUnit-tt.want) > 1e-9*tt.want {
			t.Errorf("%s: %g µs, want %g", tt.workload, got.CPUUSPerUnit, tt.want)
		}
	}
}

// TestRoundsWithNothingAreTold says how many rounds count in no figure.
func TestRoundsWithNothingAreTold(t *testing.T) {
	if got := joined("slow", emptyNote([]float64{1, 0, 2, 0})); got != "slow; nothing arrived in 2 of 4 rounds: they are in neither figure nor ratios" {
		t.Errorf("%q", got)
	}
	if got := joined("slow", emptyNote([]float64{1, 2})); got != "slow" {
		t.Errorf("%q", got)
	}
}
