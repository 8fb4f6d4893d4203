// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"
	"math/rand/v2"
)

// noise is how two simulated rows vary. It has standard deviations of their ratio by level, and the share of spoilt
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
