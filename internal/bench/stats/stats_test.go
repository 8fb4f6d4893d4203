// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"mustang/internal/testkit"
)

// TestIntervalCoversTheRatio compares 1,000 pairs of rows for each kind of noise and
// series, in the long form 2,000. 95 % is meant; three standard deviations of the count are 2.1 % or 1.5 %.
func TestIntervalCoversTheRatio(t *testing.T) {
	const ratio = 1.05
	times := testkit.Repeats(1000, 2000)
	kinds := []struct {
		name string
		noise
	}{
		{"requests", requests}, {"streams", streams},
		{"spoilt requests", requests.with(0.05)}, {"spoilt streams", streams.with(0.05)},
	}
	series := []struct {
		Counts
		rounds int // at which the series is interrupted; 0 if not
		over   Level
	}{
		{Counts{3, 1, 1, 5}, 0, Lab},
		{Counts{3, 2, 3, 5}, 0, Lab},
		{Counts{6, 1, 2, 10}, 107, Lab},
		{Counts{15, 1, 1, 5}, 0, Lab},
		{Counts{8, 8, 1, 1}, 0, Lab},
		{Counts{2, 5, 1, 5}, 0, Process},
		{Counts{1, 10, 1, 5}, 0, Process},
		{Counts{1, 1, 6, 5}, 0, Connection},
		{Counts{1, 1, 1, 30}, 0, Round},
	}
	for k, kind := range kinds {
		for i, s := range series {
			if s.over < Lab && kind.spoilt == 0 {
				continue // the harder case will do
			}
			t.Run(fmt.Sprint(kind.name, s), func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(uint64(k), uint64(i)))
				covered, half := 0, 0.0
				for range times {
					a, b := simulate(rng, s.Counts, kind.alike(s.over), ratio)
					if s.rounds > 0 {
						a = a[:s.rounds]
					}
					c := Compare(a, b)
					testkit.Require(t, c.Over == s.over && c.Interval != nil, "an interval over %v: %v", c.Over, c.Interval)
					if c.Interval[0] <= ratio && ratio <= c.Interval[1] {
						covered++
					}
					half += c.HalfWidth() / float64(times)
				}
				share := float64(covered) / float64(times)
				t.Logf("covered %.1f %%, half-width %.2f %%", 100*share, 100*half)
				testkit.Check(t, !(share < 0.92) && !(share > 0.98),
					"the intervals cover the ratio in %.1f %%, 95 %% is meant", 100*share)
			})
		}
	}
}

func TestSummaryCoversTheFigure(t *testing.T) {
	const times = 2000
	v := requests.with(0.05)
	v.drift = 0
	rng := rand.New(rand.NewPCG(1, 2))
	covered := 0
	for range times {
		samples, _ := simulate(rng, Counts{6, 1, 2, 5}, v, 1)
		// Disturbed rounds are slower, never faster: they move the median by 0.05 %, which is little beside the half-width of
		// 1 %.
		if e := Summarize(samples); e.Interval[0] <= 30000 && 30000 <= e.Interval[1] {
			covered++
		}
	}
	share := float64(covered) / times
	testkit.Check(t, !(share < 0.92) && !(share > 0.98), "the intervals cover the figure in %.1f %%", 100*share)
}

func TestDriftCancelsOut(t *testing.T) {
	n := Counts{6, 1, 1, 10}
	steady, drifting := requests, requests
	steady.drift, drifting.drift = 0, 0.5
	want := Compare(simulate(rand.New(rand.NewPCG(1, 2)), n, steady, 1.1))
	got := Compare(simulate(rand.New(rand.NewPCG(1, 2)), n, drifting, 1.1))
	testkit.Check(t, !(math.Abs(got.Value/want.Value-1) > 1e-9) && !(math.Abs(got.HalfWidth()-want.HalfWidth()) > 1e-9),
		"with drift %v, without %v", got, want)
}

func TestComponentsAreRecovered(t *testing.T) {
	const times = 150
	for _, v := range []noise{
		requests, streams,
		{lab: 0.01, round: 0.01}, {process: 0.01, round: 0.001}, {connection: 0.01, round: 0.01}, {round: 0.01},
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		var sum Components
		for range times {
			c := Compare(simulate(rng, Counts{20, 3, 3, 5}, v, 1)).Components
			for _, variance := range []float64{c.Lab, c.Process, c.Connection, c.Round} {
				testkit.Require(t, !(variance < 0) && !math.IsNaN(variance), "components %v", c)
			}
			sum.Lab += c.Lab / times
			sum.Process += c.Process / times
			sum.Connection += c.Connection / times
			sum.Round += c.Round / times
		}
		// If the level's variance is 0, negative values count as 0, and the mean lies above.
		got, want := sum.Shares(), v.variances().Shares()
		for level, d := range []float64{
			got.Round - want.Round, got.Connection - want.Connection, got.Process - want.Process, got.Lab - want.Lab,
		} {
			testkit.Check(t, !(math.Abs(d) > 0.05),
				"%v: share of the level %v is off by %.3f: %.3f, want %.3f", v, Level(level), d, got, want)
		}
	}
}

// TestRoundVarianceForAnyNumber checks the median absolute deviation in small groups, where it is too small by nature.
func TestRoundVarianceForAnyNumber(t *testing.T) {
	for _, rounds := range []int{2, 3, 4, 5, 6, 8, 9, 20} {
		n := Counts{6000 / rounds, 1, 1, rounds}
		c := Compare(simulate(rand.New(rand.NewPCG(1, 2)), n, noise{round: 0.01}, 1))
		got := math.Sqrt(c.Components.Round)
		testkit.Check(t, !(math.Abs(got/0.01-1) > 0.06), "%d rounds: standard deviation %.5f, want 0.01", rounds, got)
	}
}

// TestUnrepeatedLevelCountsAbove checks that the variance of a level with one unit in each is in the level above.
func TestUnrepeatedLevelCountsAbove(t *testing.T) {
	c := Compare(simulate(rand.New(rand.NewPCG(1, 2)), Counts{20, 4, 1, 1}, noise{connection: 0.01, round: 0.01},
		1)).Components
	testkit.Check(t, c.Round == 0 && c.Connection == 0 && !(c.Process < 1e-4) && !(c.Process > 3e-4),
		"components %v, want 0.0002 between processes", c)
}

func TestOverTheHighestLevelWithThreeUnits(t *testing.T) {
	for _, tt := range []struct {
		n        Counts
		over     Level
		units    int
		interval bool
	}{
		{Counts{3, 1, 1, 1}, Lab, 3, true},
		{Counts{2, 2, 1, 1}, Process, 4, true},
		{Counts{2, 1, 2, 1}, Connection, 4, true},
		{Counts{1, 1, 3, 1}, Connection, 3, true},
		{Counts{2, 1, 1, 3}, Round, 6, true},
		{Counts{1, 1, 2, 2}, Round, 4, false},
		{Counts{1, 1, 1, 5}, Round, 5, false},
		{Counts{1, 1, 1, 1}, Round, 1, false},
		{Counts{}, Round, 0, false},
	} {
		c := Compare(simulate(rand.New(rand.NewPCG(1, 2)), tt.n, requests, 1.1))
		testkit.Check(t, c.Over == tt.over && c.Units == tt.units && (c.Interval != nil) == tt.interval,
			"%v: over %d %vs, interval %v", tt.n, c.Units, c.Over, c.Interval)
		if !tt.interval && (c.P != 1 || !math.IsInf(c.HalfWidth(), 1)) {
			t.Errorf("%v: p %g, half-width %g without interval", tt.n, c.P, c.HalfWidth())
		}
		want := c.Rounds > 0
		testkit.Check(t, want == (c.Value > 1), "%v: ratio %g", tt.n, c.Value)
	}
}

func TestPAgreesWithInterval(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	outside := 0
	for i := range 300 {
		n := []Counts{{4, 1, 2, 3}, {1, 5, 1, 3}, {1, 1, 1, 12}, {1, 1, 1, 7}}[i%4]
		c := Compare(simulate(rng, n, requests.alike(Round), 1+0.01*rng.Float64()))
		excludes := c.Interval[0] > 1 || c.Interval[1] < 1
		if excludes {
			outside++
		}
		if excludes != (c.P < 0.05) {
			t.Errorf("%v: p %g with interval %v", n, c.P, *c.Interval)
		}
	}
	testkit.Check(t, outside >= 50 && outside <= 250, "%d of 300 intervals exclude 1: the test says nothing", outside)
}

func TestSymmetries(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	near := func(x, y float64) bool { return math.Abs(x-y) <= 1e-9*max(1, math.Abs(x)) }
	same := func(x, y Comparison, scale float64) bool {
		return near(x.Value*scale, y.Value) && near(x.Interval[0]*scale, y.Interval[0]) &&
			near(x.Interval[1]*scale, y.Interval[1]) &&
			near(x.Components.Lab, y.Components.Lab) && near(x.Components.Round, y.Components.Round)
	}
	for _, n := range []Counts{{5, 2, 2, 4}, {1, 4, 1, 5}, {1, 1, 1, 9}} {
		a, b := simulate(rng, n, requests.with(0.1), 1.02)
		a = a[:len(a)-2]
		c := Compare(a, b)

		inverse := Compare(b, a)
		back := inverse
		back.Value, back.Interval = 1/inverse.Value, &[2]float64{1 / inverse.Interval[1], 1 / inverse.Interval[0]}
		testkit.Check(t, same(c, back, 1) && near(c.P, inverse.P), "%v: a/b %v, b/a %v", n, c, inverse)

		shuffled := slices.Clone(a)
		rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		other := Compare(shuffled, b)
		testkit.Check(t, same(c, other, 1) && c.P == other.P, "%v: in order %v, shuffled %v", n, c, other)

		for i := range shuffled {
			shuffled[i].Value *= 1e-3
			shuffled[i].Lab = 100 - shuffled[i].Lab*7
		}
		moved := slices.Clone(b)
		for i := range moved {
			moved[i].Lab = 100 - moved[i].Lab*7
		}
		scaled := Compare(shuffled, moved)
		testkit.Check(t, same(c, scaled, 1e-3), "%v: %v, in thousands and with other numbers %v", n, c, scaled)
	}
}

// TestUnusableSamplesAreCounted feeds figures and positions at random, half of them bad.
func TestUnusableSamplesAreCounted(t *testing.T) {
	bad := []float64{0, -1, math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1)}
	good := []float64{1, 1, 2, 3, math.MaxFloat64, math.SmallestNonzeroFloat64}
	rng := rand.New(rand.NewPCG(1, 2))
	row := func(size int, badShare float64) []Sample {
		samples := make([]Sample, rng.IntN(size))
		for i := range samples {
			samples[i].Position = Position{rng.IntN(4) - 1, rng.IntN(2), rng.IntN(2), rng.IntN(6)}
			samples[i].Value = good[rng.IntN(len(good))]
			if rng.Float64() < badShare {
				samples[i].Value = bad[rng.IntN(len(bad))]
			}
		}
		return samples
	}
	finite := func(e Estimate, values ...float64) bool {
		values = append(values, e.Value, e.Components.Lab, e.Components.Process, e.Components.Connection, e.Components.Round)
		if e.Interval != nil {
			values = append(values, e.Interval[0], e.Interval[1])
			if !(e.Interval[0] <= e.Value && e.Value <= e.Interval[1]) {
				return false
			}
		}
		s := e.Components.Shares()
		return !slices.ContainsFunc(append(values, s.Lab, s.Round), func(v float64) bool {
			return !(v >= 0) ||
				math.IsInf(v, 0)
		})
	}
	for i := range 3000 {
		a, b := row(120, 0.5*float64(i%2)), row(120, 0.5*float64(i%2))
		c := Compare(a, b)
		testkit.Require(t, c.Dropped+2*c.Rounds == len(a)+len(b),
			"dropped %d, used %d of %d and %d", c.Dropped, c.Rounds, len(a), len(b))
		testkit.Require(t, finite(c.Estimate, c.P) && !(c.P > 1), "%+v of\n%v\n%v", c, a, b)
		e := Summarize(a)
		testkit.Require(t, e.Dropped+e.Rounds == len(a) && finite(e), "%+v of %v", e, a)
	}
}

func TestPositionThatOccursTwiceIsDropped(t *testing.T) {
	a := []Sample{{Position{Lab: 1}, 2}, {Position{Lab: 2}, 7}, {Position{Lab: 2}, 9}, {Position{Lab: 3}, 2}}
	b := []Sample{{Position{Lab: 1}, 1}, {Position{Lab: 2}, 1}, {Position{Lab: 3}, 1}}
	c := Compare(a, b)
	testkit.Check(t, c.Rounds == 2 && c.Dropped == 3 && !(math.Abs(c.Value-2) > 1e-12), "%+v", c)
}

func TestEqualFigures(t *testing.T) {
	var a, b []Sample
	for i := range 4 {
		a = append(a, Sample{Position{Lab: i}, 200})
		b = append(b, Sample{Position{Lab: i}, 100})
	}
	c := Compare(a, b)
	testkit.Check(t, !(math.Abs(c.Value-2) > 1e-12) && !(c.HalfWidth() > 1e-12) && c.P == 0, "2, four times: %+v", c)
	for i := range 20 {
		b = append(b, Sample{Position{Round: 1 + i}, 100})
		a = append(a, Sample{Position{Round: 1 + i}, 100 + float64(i/14)})
	}
	if c := Compare(a[4:], b[4:]); c.Interval[0] != 1 || c.P < 0.05 {
		t.Errorf("6 of 20 rounds above 1, the rest at 1: p %g, interval %v", c.P, *c.Interval)
	}
	c = Compare(a, a)
	testkit.Check(t, c.Value == 1 && c.HalfWidth() == 0 && c.P == 1, "1, four times: %+v", c)
}

// Three labs, one process and connection in each, eight rounds: the ratio is about 1.2,
// and differs by a percent from lab to lab.
func ExampleCompare() {
	var veth, macvlan []Sample
	for lab, differs := range []float64{0.99, 1, 1.01} {
		for round := range 8 {
			at := Position{Lab: lab, Round: round}
			speed := 1 - 0.01*float64(round) // the machine slows down
			veth = append(veth, Sample{at, 24000 * speed * differs})
			macvlan = append(macvlan, Sample{at, 20000 * speed})
		}
	}
	c := Compare(veth, macvlan)
	fmt.Printf("%.2f [%.2f, %.2f] over %d %vs, p %.4f\n", c.Value, c.Interval[0], c.Interval[1], c.Units, c.Over, c.P)
	// Output: 1.20 [1.17, 1.23] over 3 labs, p 0.0010
}
