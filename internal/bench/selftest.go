// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"math"
	"slices"
	"time"

	"mustang/internal/bench/suites"
	"mustang/internal/result"
)

// SelftestCheck is one thing that was tested.
type SelftestCheck struct {
	Name   string `json:"check"` // the measurement; Want: the expected result; Found: the actual one
	Want   string `json:"want"`
	Found  string `json:"found"`
	Status string `json:"status"` // passed, [Failed] or skipped
}

// Statuses of a check.
const (
	passed  = "passed"
	Failed  = "failed"
	skipped = "skipped"
)

const (
	significance = 0.05 // the p-value below which a single pair would count as a difference
	// tooManySingle is how many times the expected number of such pairs shows that intervals are
	// too narrow. Pairs of one lab share its noise, so their number varies more than binomially.
	tooManySingle = 2
	tooWide       = 0.1 // the half-width from which an interval shows nothing
	tooWideToTell = ": interval too wide; repeat on a quiet machine"
	// shortestDelay is the smallest difference that must be found, as a share of a transaction: machines differ in speed.
	shortestDelay = 0.005
	rateTolerance = 0.02 // how far a figure may miss a wire's rate, as a share
	// payloadShare is the share of a TCP segment's payload in its Ethernet frame, at an MTU of 1500 and with time stamps.
	payloadShare = 1448.0 / 1514
)

// JudgeSelftest returns the checks of a run of the self-test suites. [suites.SameSuite] measures one path many
// times; [suites.KnownSuite] measures differences set in advance.
func JudgeSelftest(f result.File) []SelftestCheck {
	j := judge{f, map[string]result.Row{}}
	for _, row := range f.Rows {
		j.rows[row.ID] = row
	}
	var checks []SelftestCheck
	for _, s := range suites.SelfTest() {
		for _, w := range s.Workloads {
			if s.Name == suites.SameSuite {
				checks = append(checks, j.same(w.Name))
			}
		}
		for _, p := range s.Paths {
			switch {
			case p.Delay > 0:
				name := fmt.Sprintf("a delay of %v in the server", p.Delay)
				checks = append(checks, j.delay(name, p.ID, suites.KnownPath, p.Delay))
			case p.Lab.WireRate > 0:
				checks = append(checks, j.wireRate(p))
			case p.Lab.WireDelay > suites.KnownDelay:
				further := p.Lab.WireDelay - suites.KnownDelay
				name := fmt.Sprintf("a further delay of %v on the wire", further)
				checks = append(checks, j.delay(name, p.ID, suites.KnownWire, 2*further))
			}
		}
	}
	return checks
}

type judge struct {
	file result.File
	rows map[string]result.Row // by ID; IDs of the wire and delays are unique
}

// pairs returns the comparisons of a suite with an interval, without comparisons that only order rows.
func (j judge) pairs(suite string, fits func(result.Comparison) bool) []result.Comparison {
	return slices.DeleteFunc(slices.Clone(j.file.Run.Comparisons), func(c result.Comparison) bool {
		return c.Suite != suite || c.Asks != "" || c.CI95 == nil || !fits(c)
	})
}

func (j judge) same(workload string) SelftestCheck {
	c := SelftestCheck{Name: "the same path, " + workload, Want: "no difference", Status: Failed,
		Found: "no pair was measured"}
	single, wrong := 0, 0
	var widths []float64
	for _, pair := range j.pairs(suites.SameSuite, func(c result.Comparison) bool { return c.Workload == workload }) {
		widths = append(widths, logHalfWidth(pair))
		if pair.P < significance {
			single++
		}
		if pair.Verdict != result.VerdictNone {
			wrong++
		}
	}
	if len(widths) == 0 {
		return c
	}
	slices.Sort(widths)
	middle, expected := widths[len(widths)/2], significance*float64(len(widths))
	c.Found = fmt.Sprintf(
		"%d in %d pairs (%d without Holm's correction, about %.0f are to be expected); interval ±%.2f %%, 95 %% of them "+
			"at most ±%.2f %%",
		wrong, len(widths), single, expected, 100*middle, 100*widths[len(widths)*95/100])
	switch {
	case middle > tooWide:
		c.Found += tooWideToTell
	case wrong == 0 && float64(single) <= tooManySingle*expected:
		c.Status = passed
	}
	lost := func(r result.Row) bool {
		return r.Suite == suites.SameSuite && r.Workload == workload && r.Status == result.StatusFailed
	}
	if i := slices.IndexFunc(j.file.Rows, lost); i >= 0 {
		c.Status, c.Found = Failed, fmt.Sprintf("%s; %s was not measured: %s", c.Found, j.file.Rows[i].ID,
			j.file.Rows[i].Reason)
	}
	return c
}

func logHalfWidth(c result.Comparison) float64 { return max(c.CI95[1]/c.Ratio-1, 1-c.CI95[0]/c.Ratio) }

// delay checks a path whose transactions take longer than the transactions of another path by a set time. The
// interval must exclude equality, and the ratio must match the set time.
func (j judge) delay(name, id, than string, longer time.Duration) SelftestCheck {
	row, plain := j.rows[id], j.rows[than]
	c := SelftestCheck{Name: name, Want: "a lower rate", Status: Failed, Found: "not measured: " + row.Reason}
	pairs := j.pairs(suites.KnownSuite, func(c result.Comparison) bool { return c.Numerator == id })
	want := 1 / (1 + longer.Seconds()*plain.Median)
	switch {
	case row.Status == result.StatusSkipped:
		c.Status, c.Found = skipped, row.Reason
		return c
	case len(pairs) == 0 || plain.Median <= 0:
		return c
	case want > 1-shortestDelay:
		c.Status, c.Found = skipped, fmt.Sprintf("shorter than %g %% of a transaction", 100*shortestDelay)
		return c
	}
	pair := pairs[0]
	c.Want = fmt.Sprintf("%.4f of the rate without", want)
	c.Found = fmt.Sprintf("%.4f [%.4f, %.4f]", pair.Ratio, pair.CI95[0], pair.CI95[1])
	switch width := logHalfWidth(pair); {
	case width > tooWide:
		c.Found += tooWideToTell
	case math.Abs(math.Log(pair.Ratio/want)) <= 2*width && pair.Verdict == result.VerdictLower:
		c.Status = passed
	}
	return c
}

func (j judge) wireRate(p suites.Path) SelftestCheck {
	row, rate := j.rows[p.ID], float64(p.Lab.WireRate)/1e9
	want := rate * payloadShare
	c := SelftestCheck{
		Name: fmt.Sprintf("a wire of %g Gbit/s", rate), Want: fmt.Sprintf("%.3f Gbit/s of payload", want),
		Found: "not measured: " + row.Reason, Status: Failed,
	}
	if row.Median > 0 {
		c.Found = fmt.Sprintf("%.3f Gbit/s", row.Median)
	}
	switch {
	case row.Status == result.StatusSkipped:
		c.Status, c.Found = skipped, row.Reason
	case math.Abs(row.Median/want-1) <= rateTolerance:
		c.Status = passed
	}
	return c
}
