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

// Costs are the times that one more unit of a level takes, for all rows together and
// without what is in it: the rebuilding of a lab with its processes and connections, and
// one round of all rows.
type Costs struct{ Lab, Round time.Duration }

// Counts are the numbers of labs, of processes in each, of connections in each process
// and of rounds on each connection.
type Counts struct{ Labs, Processes, Connections, Rounds int }

// Time returns how long the counts take.
func (n Counts) Time(c Costs) time.Duration {
	return time.Duration(n.Labs) * (c.Lab + time.Duration(n.rounds())*c.Round)
}

// HalfWidth returns the half-width to expect of an interval over the labs, as a share:
// 0.005 is 0.5 %. It is +Inf for fewer than three.
func (n Counts) HalfWidth(v Components) float64 {
	if n.Labs < leastUnits {
		return math.Inf(1)
	}
	return math.Expm1(quantile(n.Labs-1) * math.Sqrt((v.Lab+n.noise(v))/float64(n.Labs)))
}

// noise returns the variance of a lab's median that the levels in the lab cause.
func (n Counts) noise(v Components) float64 {
	processes := float64(n.Processes)
	connections := processes * float64(n.Connections)
	return v.Process/processes + v.Connection/connections + v.Round*medianVariance(n.rounds())
}

// rounds returns the number of rounds in a lab.
func (n Counts) rounds() int { return n.Processes * n.Connections * n.Rounds }

// Plan returns the number of labs, with one connection in each, and of rounds that give
// the narrowest interval in the time that there is, from the components of a pilot run.
// The costs and variances of Kalibera and Jones have their minimum at rounds = sqrt(cost
// of a lab / cost of a round * variance of rounds / variance of labs). Here the whole
// numbers are searched for, since Student's t asks for more labs than that, and since a
// pilot often finds no variance where there is a little.
//
// There are at least six labs with eight rounds in each; in less time fewer rounds, then
// three labs. Where not even that fits, it is one of each, whatever the time.
func Plan(pilot Components, c Costs, total time.Duration) Counts {
	var wishes []Counts // the least of each, from the best wish
	for rounds := claimRounds; rounds > 0; rounds-- {
		wishes = append(wishes, Counts{Labs: claimLabs, Rounds: rounds})
	}
	for _, least := range append(wishes, Counts{Labs: leastUnits, Rounds: 1}) {
		best, narrowest := Counts{}, math.Inf(1)
		for labs := least.Labs; labs <= mostFreedom; labs++ {
			left := total/time.Duration(labs) - c.Lab
			n := Counts{labs, 1, 1, int(left / max(1, c.Round))}
			if left < 0 || n.Rounds < least.Rounds {
				break
			}
			if h := n.HalfWidth(pilot); h < narrowest {
				best, narrowest = n, h
			}
		}
		if best.Labs > 0 {
			return best
		}
	}
	return Counts{1, 1, 1, 1}
}
