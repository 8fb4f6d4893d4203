// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// recorded returns the log ratios of an A/A pair of a real run, by workload and lab. Each line of the file is a lab:
// the workload, then a ratio for each round in units of 0.01 %.
func recorded(t *testing.T) map[string][][]float64 {
	t.Helper()
	text, err := os.ReadFile("testdata/repeated.txt")
	testkit.Succeed(t, err)
	labs := map[string][][]float64{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		var ratios []float64
		for _, field := range fields[1:] {
			v, err := strconv.ParseFloat(field, 64)
			testkit.Succeed(t, err)
			ratios = append(ratios, v/1e4)
		}
		labs[fields[0]] = append(labs[fields[0]], ratios)
	}
	return labs
}

// Labs and rounds that are drawn for a run.
const drawnLabs, drawnRounds = 14, 60

// drawn returns two rows of labs that are drawn from recorded ones, the first faster by a ratio.
func drawn(rng *rand.Rand, from [][]float64, ratio float64) (a, b []Sample) {
	for lab := range drawnLabs {
		ratios := from[rng.IntN(len(from))]
		for round := range drawnRounds {
			at := Position{Lab: lab, Round: round}
			a = append(a, Sample{at, ratio * math.Exp(ratios[rng.IntN(len(ratios))])})
			b = append(b, Sample{at, 1})
		}
	}
	return a, b
}

// TestRecordedNoise draws runs from the labs and rounds of a real one, of each workload. 95 % of the intervals hold the
// truth: the estimate over all recorded labs. A difference of 1 % is found or bounded. Few false differences are found.
func TestRecordedNoise(t *testing.T) {
	t.Parallel()
	const times = 400
	for workload, from := range recorded(t) {
		rng := rand.New(rand.NewPCG(7, uint64(len(workload))))
		truth := 0.0
		for _, ratios := range from {
			var points []point
			for _, v := range ratios {
				points = append(points, point{value: v})
			}
			truth += center(points) / float64(len(from))
		}
		covered, false5, width := 0, 0, 0.0
		for range times {
			c := Compare(drawn(rng, from, math.Exp(-truth)))
			if c.Interval[0] <= 1 && 1 <= c.Interval[1] {
				covered++
			}
			if c.P < Significance {
				false5++
			}
			width += c.HalfWidth() / times
		}
		found, effect := 0, 1-4*width
		for range times {
			if c := Compare(drawn(rng, from, effect*math.Exp(-truth))); c.P < Significance && c.Value < 1 {
				found++
			}
		}
		t.Logf("%s: covered %.1f %%, half-width %.2f %%, %d of %d find a ratio of %.4f", workload, 100*float64(covered)/times,
			100*width, found, times, effect)
		if share := float64(covered) / times; share < 0.92 || share > 0.98 {
			t.Errorf("%s: the intervals cover the truth in %.1f %%", workload, 100*share)
		}
		testkit.Check(t, false5 <= times*8/100, "%s: %d of %d A/A pairs have a p under 0.05", workload, false5, times)
		testkit.Check(t, found >= times*99/100,
			"%s: a ratio of %.4f, four half-widths from 1, is found in %d of %d", workload, effect, found, times)
	}
}

// noise is the variation of two simulated rows: standard deviations of their ratio by level, and the share of disturbed
// rounds, which are slowed by 5 to 50 %.
type noise struct {
	lab, process, connection, round float64
	spoilt                          float64
	drift                           float64 // share by which the machine's speed varies over the series
}

// Noise as seen on a machine of two CPUs: request/response varies between processes and labs, streams vary little.
var (
	requests = noise{lab: 0.0106, process: 0.0106, connection: 0.005, round: 0.01, drift: 0.2}
	streams  = noise{lab: 0.0014, process: 0.0014, connection: 0.001, round: 0.005, drift: 0.2}
)

// Counts are the numbers of labs, of processes in each, of connections in each process
// and of rounds on each connection.
type Counts struct{ Labs, Processes, Connections, Rounds int }

func (n Counts) rounds() int { return n.Processes * n.Connections * n.Rounds }

func (n noise) with(spoilt float64) noise {
	n.spoilt = spoilt
	return n
}

// alike returns the noise without what differs between the units of levels above one.
func (n noise) alike(above Level) noise {
	if above < Lab {
		n.lab = 0
	}
	if above < Process {
		n.process = 0
	}
	if above < Connection {
		n.connection = 0
	}
	return n
}

func (n noise) variances() Components {
	return Components{n.lab * n.lab, n.process * n.process, n.connection * n.connection, n.round * n.round}
}

// simulate returns two rows, the first faster by a ratio: their levels vary on their
// own, and the drift is common to both.
func simulate(rng *rand.Rand, n Counts, v noise, ratio float64) (a, b []Sample) {
	draw := func(deviation float64) [2]float64 {
		return [2]float64{rng.NormFloat64() * deviation / math.Sqrt2, rng.NormFloat64() * deviation / math.Sqrt2}
	}
	add := func(x, y [2]float64) [2]float64 { return [2]float64{x[0] + y[0], x[1] + y[1]} }
	size := n.Labs * n.rounds()
	a, b = make([]Sample, 0, size), make([]Sample, 0, size)
	for lab := range n.Labs {
		inLab := draw(v.lab)
		for process := range n.Processes {
			inProcess := add(inLab, draw(v.process))
			for connection := range n.Connections {
				inConnection := add(inProcess, draw(v.connection))
				for round := range n.Rounds {
					x := add(inConnection, draw(v.round))
					for row := range x {
						if rng.Float64() < v.spoilt {
							x[row] -= math.Log(1.05 + 0.45*rng.Float64())
						}
					}
					drift := v.drift * math.Sin(3*float64(len(a))/float64(size))
					at := Position{lab, process, connection, round}
					a = append(a, Sample{at, 30000 * ratio * math.Exp(x[0]+drift)})
					b = append(b, Sample{at, 30000 * math.Exp(x[1]+drift)})
				}
			}
		}
	}
	return a, b
}
