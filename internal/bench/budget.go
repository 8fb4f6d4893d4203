// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"mustang/internal/bench/suites"
	"mustang/internal/result"
)

const (
	// fewInstances is the number of instances of a timed run if its time allows. An interval rests on the differences
	// between instances; fewer than three give none.
	fewInstances   = 6
	roundInstances = 8 // the number of instances that a given number of rounds is divided among
	// minUntil is the least number before a run ends because intervals are narrow: the first few may be narrow by chance.
	minUntil = 10
	// turnsPerFixed is the time of an instance's turns as a multiple of its time without turns: to build labs, to open and
	// shut connections. Turns then take four fifths of a run. The more instances there are, the narrower the intervals:
	// identical labs differ by 1 to 3 %.
	turnsPerFixed = 4
	// longestShare is the longest time of an instance of a run that ends when its intervals are narrow.
	longestShare = 20 * time.Second
	leastRounds  = 3 // the least number of rounds of an instance, whatever the time
	// batchTime is when an interrupt ends the turns, and progress is shown; mostBatch is the most rounds in it.
	batchTime = 500 * time.Millisecond
	mostBatch = 1000
	roundTime = 200 * time.Millisecond // about how long a round of one workload takes
	// mostFilled is the share of a result file's limits after which a suite ends. The next instance must fit too, since
	// readers refuse larger files.
	mostFilled = 0.8
)

// budget divides the time of a suite among its instances, or among its rounds if their number is given. An instance
// takes its time without turns (see turnsPerFixed), plus the turns of its workloads.
type budget struct {
	options   Options
	started   time.Time     // when the suite began
	built     time.Duration // the time to build the labs of the first instance, before it
	workloads int
	done      int                // instances so far
	rounds    int                // rounds to come, where their number is given
	fixed     time.Duration      // the time of an instance without its turns
	looks     int                // quarters of the time after which the run has looked at its data, see [run.look]
	weights   map[string]float64 // the workloads' shares of the time of turns; 1 if missing
	// Of the present instance: its begin, the time for turns, time in turns so far, sum of weights, and rounds if given.
	begun       time.Time
	turns, used time.Duration
	weight      float64
	quota       int
	// sampled is the number of rounds of all instances. most is the maximum of the present instance, and longest of its
	// longest epoch: a row has at most [result.MaxSamples].
	sampled, most, longest int
	rounding               time.Duration // the time of all rounds of turns so far
	pace                   pace
}

func newBudget(o Options, started time.Time, built time.Duration, workloads int) *budget {
	workloads = max(workloads, 1)
	return &budget{
		options: o, started: started, built: built, workloads: workloads, rounds: o.Rounds, weights: map[string]float64{},
		fixed: max(built+built/5*time.Duration(workloads), time.Millisecond),
		pace:  pace{started: time.Now(), each: roundTime, total: o.Rounds * workloads},
	}
}

// expected is about how long groups of rows take, without the groups that have nothing left to measure.
func (o Options) expected(groups [][]*measuredRow) (d time.Duration) {
	for _, rows := range groups {
		switch suite := rows[0].spec.suite; {
		case pending(rows) > 0 && o.Rounds == 0 && (o.sliced(suite) || suite.BesideEngines()):
			d += o.Time
		case pending(rows) > 0 && o.sliced(suite):
			d += time.Duration(o.Rounds*len(o.workloads(suite))) * roundTime
		default:
			d += time.Duration(pending(rows)*o.rounds()) * o.sampleTime(rows[0].spec.path)
		}
	}
	return d
}

func (b *budget) remaining() time.Duration { return max(b.options.Time-time.Since(b.started), 0) }

func (b *budget) left() time.Duration {
	if b.options.Rounds > 0 {
		return b.pace.left()
	}
	return b.remaining()
}

func (b *budget) begin(workloads ...string) {
	b.begun, b.used, b.longest, b.weight = time.Now(), 0, 0, 0
	for _, w := range workloads {
		b.weight += b.weightOf(w)
	}
	var instances int
	if rounds := b.options.Rounds; rounds > 0 {
		instances = max(min(roundInstances, (rounds+leastRounds-1)/leastRounds)-b.done, 1)
		b.quota = (b.rounds + instances - 1) / instances
	} else {
		left, fixed := b.remaining(), float64(b.fixed)
		instances = max(int(float64(left)/(fixed*(1+turnsPerFixed))), min(fewInstances-b.done,
			int(float64(left)/(1.3*fixed))), 1)
		share := left / time.Duration(instances)
		if b.options.Until > 0 {
			share = min(share, longestShare)
		}
		b.turns = share - b.fixed
		if b.done == 0 {
			b.turns += b.built
		}
	}
	b.most = max(leastRounds, (result.MaxSamples-b.sampled)/instances)
}

func (b *budget) end() {
	fixed := time.Since(b.begun) - b.used
	if b.done == 0 {
		fixed += b.built
	}
	b.fixed = max((b.fixed+fixed)/2, time.Millisecond)
	b.done++
	b.rounds -= b.quota
	b.sampled += b.longest
}

// over reports whether a suite is finished, given the half-width of its widest interval. No instance begins too late.
func (b *budget) over(widest float64) bool {
	switch {
	case b.options.Rounds > 0:
		return b.rounds <= 0
	case b.sampled > result.MaxSamples-leastRounds, b.options.Until > 0 && b.done >= minUntil && widest <= b.options.Until:
		return true
	}
	least := b.fixed + time.Duration(leastRounds*b.workloads)*b.rounding/time.Duration(max(b.pace.done, 1))
	return b.done > 0 && b.remaining() < least*21/20
}

func (b *budget) weightOf(workload string) float64 { return cmp.Or(b.weights[workload], 1) }

// turnTime divides the time of a workload's turns in an instance among batches of rounds.
type turnTime struct {
	*budget
	until time.Time
	taken int // rounds so far
	spent time.Duration
}

func (b *budget) epoch(workload string) *turnTime {
	share := b.weightOf(workload) / max(b.weight, b.weightOf(workload))
	return &turnTime{budget: b, until: time.Now().Add(time.Duration(float64(b.turns) * share))}
}

// next returns the number of rounds of the next batch; 0 ends the epoch.
func (t *turnTime) next() int {
	each := max(t.spent/time.Duration(max(t.taken, 1)), 1)
	batch, left := max(1, min(int(batchTime/each), mostBatch)), 0
	switch {
	case t.options.Rounds > 0:
		left = t.quota - t.taken
	case t.taken > 0:
		left = min(int(time.Until(t.until)/each), t.most-t.taken)
	default:
		return leastRounds
	}
	if t.taken == 0 {
		batch = leastRounds
	}
	return max(0, min(left, batch))
}

func (t *turnTime) took(rounds int, spent time.Duration) {
	t.taken += rounds
	t.spent += spent
	t.used += spent
	t.rounding += spent
	t.pace.done += rounds
	t.longest = max(t.longest, t.taken)
}

// full reports whether a further instance of rows would exceed the result file's limits, and notes it. Each suite
// has its share of the file.
func (r *run) full(rows []*measuredRow) bool {
	suite := slices.IndexFunc(r.options.Suites, func(s suites.Suite) bool { return s.Name == rows[0].row.Suite })
	if r.options.Out == nil || r.options.Out.Filled()*float64(len(r.options.Suites)) < mostFilled*float64(suite+1) {
		return false
	}
	rounds := 0
	for _, row := range rows {
		rounds = max(rounds, len(row.row.Samples))
	}
	r.head.Notes = append(r.head.Notes, fmt.Sprintf("Suite %s ended after %s: the result file is full.", rows[0].row.Suite,
		count(rounds, "round")))
	return true
}
