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
	// Name says what was measured, Want what had to be found, and Found what was.
	Name, Want, Found string
	// Status is passed, [Failed] or skipped.
	Status string
}

// Statuses of a check.
const (
	passed  = "passed"
	Failed  = "failed"
	skipped = "skipped"
)

// significance is the p-value below which a single pair would count as a difference.
const significance = 0.05

// tooManySingle is how many times the expected number of such pairs shows that intervals are
// too narrow. Pairs of one lab share its noise, so their number varies more than binomially.
const tooManySingle = 2

// tooWide is the half-width from which an interval says nothing.
const (
	tooWide       = 0.1
	tooWideToTell = ": too wide to tell anything; repeat on a quiet machine"
)

// shortestDelay is the smallest difference that is asked for, as a share of a transaction: 35 ns are less on a slow machine.
const shortestDelay = 0.005

// rateTolerance is the share of a wire's rate by which a figure may miss it.
const rateTolerance = 0.02

// Share of a TCP segment's payload in its Ethernet frame, at an MTU of 1500 and with time
// stamps.
const payloadShare = 1448.0 / 1514

// JudgeSelftest returns the checks of a run of the suites that test the measurement itself: of the same path measured many times
// ([suites.SameSuite]), and of known differences ([suites.KnownSuite]).
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

func (j judge) same(workload string) SelftestCheck {
	c := SelftestCheck{Name: "the same path, " + workload, Want: "no difference", Status: Failed, Found: "no pair was measured"}
	pairs, single, wrong := 0, 0, 0
	var widths []float64
	for _, pair := range j.file.Run.Comparisons {
		if pair.Suite != suites.SameSuite || pair.Workload != workload || pair.Asks != "" || pair.CI95 == nil {
			continue
		}
		pairs++
		widths = append(widths, logHalfWidth(pair))
		if pair.P < significance {
			single++
		}
		if pair.Verdict != result.VerdictNone {
			wrong++
		}
	}
	if pairs == 0 {
		return c
	}
	slices.Sort(widths)
	c.Found = fmt.Sprintf("%d in %d pairs (%d without Holm's correction, about %.0f are to be expected); interval ±%.2f %%, 95 %% of them at most ±%.2f %%",
		wrong, pairs, single, significance*float64(pairs), 100*widths[len(widths)/2], 100*widths[len(widths)*95/100])
	switch tooMany := tooManySingle * significance * float64(pairs); {
	case widths[len(widths)/2] > tooWide:
		c.Found += tooWideToTell
	case wrong == 0 && float64(single) <= tooMany:
		c.Status = passed
	}
	for _, row := range j.file.Rows {
		if row.Suite == suites.SameSuite && row.Workload == workload && row.Status == result.StatusFailed {
			c.Status, c.Found = Failed, fmt.Sprintf("%s; %s was not measured: %s", c.Found, row.ID, row.Reason)
			break
		}
	}
	return c
}

// halfWidth returns how far the interval of a ratio extends from it, as a share.
func logHalfWidth(c result.Comparison) float64 {
	return max(c.CI95[1]/c.Ratio-1, 1-c.CI95[0]/c.Ratio)
}

// delay checks a path whose transactions take a known time longer than those of another:
// the interval must exclude that they do not, and the ratio be what that time makes of
// the other's.
func (j judge) delay(name, id, than string, longer time.Duration) SelftestCheck {
	c := SelftestCheck{Name: name, Want: "a lower rate", Status: Failed}
	row, plain := j.rows[id], j.rows[than]
	if row.Status == result.StatusSkipped {
		c.Status, c.Found = skipped, row.Reason
		return c
	}
	i := slices.IndexFunc(j.file.Run.Comparisons, func(c result.Comparison) bool {
		return c.Suite == suites.KnownSuite && c.Numerator == id && c.CI95 != nil && c.Asks == ""
	})
	if i < 0 || plain.Median <= 0 {
		c.Found = "not measured: " + row.Reason
		return c
	}
	pair := j.file.Run.Comparisons[i]
	want := 1 / (1 + longer.Seconds()*plain.Median)
	if want > 1-shortestDelay {
		c.Status, c.Found = skipped, fmt.Sprintf("shorter than %g %% of a transaction", 100*shortestDelay)
		return c
	}
	c.Want = fmt.Sprintf("%.4f of the rate without", want)
	c.Found = fmt.Sprintf("%.4f [%.4f, %.4f]", pair.Ratio, pair.CI95[0], pair.CI95[1])
	near := math.Abs(math.Log(pair.Ratio/want)) <= 2*logHalfWidth(pair)
	switch {
	case logHalfWidth(pair) > tooWide:
		c.Found += tooWideToTell
	case near && pair.Verdict == result.VerdictLower:
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
