// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"
	"time"
)

// claimLabs is the number of labs that Plan aims at: with fewer, Student's t is above
// 2.6, and one odd lab decides.
const claimLabs = 6

// claimRounds is the least number of rounds in a lab that Plan aims at: a median of eight
// ignores three spoilt ones. With five, and a tenth of the ratios spoilt, the intervals of
// streams are half as wide again (simulated).
const claimRounds = 8

// mostUnits bounds the units of a level below the labs, where the pilot saw no variance
// above it: that it saw none does not mean that there is none.
const mostUnits = 30

// Costs are the times that one more unit of a level takes, for all rows together and
// without what is in it: the rebuilding of a lab, the restart of the processes, new
// connections, and one round of all rows.
type Costs struct{ Lab, Process, Connection, Round time.Duration }

// Counts are the numbers of labs, of processes in each, of connections in each process
// and of rounds on each connection.
type Counts struct{ Labs, Processes, Connections, Rounds int }

// Time returns how long the counts take.
func (n Counts) Time(c Costs) time.Duration {
	connection := c.Connection + time.Duration(n.Rounds)*c.Round
	process := c.Process + time.Duration(n.Connections)*connection
	return time.Duration(n.Labs) * (c.Lab + time.Duration(n.Processes)*process)
}

// HalfWidth returns the half-width to expect of an interval over the labs, or over the
// processes of one lab, as a share: 0.005 is 0.5 %. It is +Inf for fewer than three.
func (n Counts) HalfWidth(v Components) float64 { return n.halfWidth(v, quantile) }

func (n Counts) halfWidth(v Components, quantile func(freedom int) float64) float64 {
	units, own := n.Labs, v.Lab
	if n.Labs == 1 {
		units, own = n.Processes, 0
		n.Processes = 1
	}
	if units < leastUnits {
		return math.Inf(1)
	}
	return math.Expm1(quantile(units-1) * math.Sqrt((own+n.noise(v))/float64(units)))
}

// noise returns the variance of a lab's median that the levels in the lab cause.
func (n Counts) noise(v Components) float64 {
	processes := float64(n.Processes)
	connections := processes * float64(n.Connections)
	return v.Process/processes + v.Connection/connections + v.Round*medianVariance(n.rounds())
}

// rounds returns the number of rounds in a lab.
func (n Counts) rounds() int { return n.Processes * n.Connections * n.Rounds }

// Plan returns the counts that give the narrowest interval in the time that there is,
// from the components of a pilot run. The costs and variances of Kalibera and Jones have
// their minimum at n = sqrt(cost of the unit above / cost * variance / variance above).
// Here the whole numbers are searched for, since Student's t asks for more labs than
// that, and since a pilot often finds no variance where there is a little.
//
// There are at least six labs with eight rounds in each; in less time fewer rounds, then
// three labs, then one, and the interval is over its processes. Where not even that
// makes an interval, it is one of each, whatever the time.
func Plan(pilot Components, c Costs, total time.Duration) Counts {
	known := map[int]float64{}
	remembered := func(freedom int) float64 {
		if known[freedom] == 0 {
			known[freedom] = quantile(freedom)
		}
		return known[freedom]
	}
	var wishes []Counts // the least of each, from the best wish
	for rounds := claimRounds; rounds > 0; rounds-- {
		wishes = append(wishes, Counts{Labs: claimLabs, Rounds: rounds})
	}
	for _, least := range append(wishes, Counts{Labs: leastUnits}, Counts{Labs: 1}) {
		best, narrowest := Counts{}, math.Inf(1)
		for n := range insides {
			n.Labs = 1
			n.Labs = int(min(total/max(1, n.Time(c)), mostFreedom))
			if least.Labs == 1 {
				n.Labs = min(n.Labs, 1)
			}
			if n.Labs < least.Labs || n.rounds() < least.Rounds {
				continue
			}
			if h := n.halfWidth(pilot, remembered); h < narrowest {
				best, narrowest = n, h
			}
		}
		if best.Labs > 0 {
			return best
		}
	}
	return Counts{1, 1, 1, 1}
}

// insides yields the counts that a lab may hold.
func insides(yield func(Counts) bool) {
	for n := range mostUnits * mostUnits * mostUnits {
		c := Counts{Processes: 1 + n/mostUnits/mostUnits, Connections: 1 + n/mostUnits%mostUnits, Rounds: 1 + n%mostUnits}
		if !yield(c) {
			return
		}
	}
}
