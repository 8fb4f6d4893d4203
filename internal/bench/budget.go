// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
	"time"

	"mustang/internal/bench/suites"
	"mustang/internal/result"
)

// Numbers of instances of a run.
const (
	// fewInstances is the number that a timed run has if its time allows: an interval rests on the
	// differences between instances, and of fewer than three there is none.
	fewInstances = 6
	// roundInstances is the number of instances that a given number of rounds is divided among.
	roundInstances = 8
	// minUntil is the least number before a run ends because its intervals are narrow: a look at
	// the first few would stop at those that are narrow by chance.
	minUntil = 10
)

// turnsPerFixed is the time of an instance's turns as a multiple of what it takes without any: to
// build labs, to open and shut connections. Turns then take four fifths of a run. The more instances there
// are, the narrower the intervals: identical labs differ by 1 to 3 %.
const turnsPerFixed = 4

// longestShare is the longest time of an instance of a run that ends when its intervals are narrow.
const longestShare = 20 * time.Second

// leastRounds is the least number of rounds of an instance, whatever the time.
const leastRounds = 3

// batchTime is the time after which an interrupt ends the turns, and progress is shown.
const batchTime = 500 * time.Millisecond

// roundTime is about how long a round of one workload takes.
const roundTime = 200 * time.Millisecond

// mostBatch is the greatest number of rounds in that time.
const mostBatch = 1000

type mean struct {
	sum time.Duration
	n   int
}

func (m *mean) add(d time.Duration) { m.sum, m.n = m.sum+d, m.n+1 }

// value returns the mean, or without any duration the other value.
func (m *mean) value(or time.Duration) time.Duration {
	if m.n == 0 {
		return or
	}
	return m.sum / time.Duration(m.n)
}

// budget divides the time of a suite among its instances, or its rounds where their number
// is given.
type budget struct {
	options   Options
	started   time.Time
	workloads int
	done      int       // instances so far
	left      int       // instances to come, where the number of rounds is given
	rounds    int       // to come, where their number is given
	proved    time.Time // when the paths were proved
	// Of the present instance: its begin and end, and its rounds of each workload.
	begun, until  time.Time
	quota, epochs int
	// sampled is the number of rounds of all instances, most that of the present one at
	// most, and longest that of its longest epoch: a row has [result.MaxSamples].
	sampled, most, longest int
	// What an instance takes beside its turns: to build its labs, to open and to shut the connections of an
	// epoch, and after the last epoch.
	building, opening, shutting, ending mean
	rounding                            mean          // a round
	built                               time.Duration // the time to build the labs of the proof
	// looks is the number of quarters of the time after which the run has looked at its data, see [run.look].
	looks int
	// weights are the workloads' shares of the time of turns; 1 where there is none.
	weights map[string]float64
}

// newBudget divides the time of a suite that began at a moment, and whose labs took a time to build.
func newBudget(o Options, started time.Time, built time.Duration, workloads int) *budget {
	b := &budget{options: o, workloads: max(workloads, 1), started: started, rounds: o.Rounds, proved: time.Now(), built: built, weights: map[string]float64{}}
	if o.Rounds > 0 {
		b.left = min(roundInstances, (o.Rounds+leastRounds-1)/leastRounds)
		o.Progress.Start(o.Rounds*workloads, roundTime)
		return b
	}
	o.Progress.Expect(0, b.remaining())
	return b
}

// expected is about how long groups of rows take, without those that have none to measure.
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

// fixed is about what an instance takes beside its turns. Before the first one it is estimated from the labs' building.
func (b *budget) fixed() time.Duration {
	epochs := time.Duration(b.workloads)
	epoch := b.opening.value(b.built/10) + b.shutting.value(b.built/20)
	return max(b.building.value(b.built)+epochs*epoch+b.ending.value(b.built/20), time.Millisecond)
}

func (b *budget) begin() {
	b.begun, b.epochs, b.longest = time.Now(), 0, 0
	if b.options.Rounds > 0 {
		left := max(b.left, 1) // slow rounds need more instances than planned
		b.quota = (b.rounds + left - 1) / left
		b.most = max(leastRounds, (result.MaxSamples-b.sampled)/left)
		return
	}
	fixed, left := b.fixed(), b.remaining()
	instances := int(float64(left) / (float64(fixed) * (1 + turnsPerFixed)))
	instances = max(instances, min(fewInstances-b.done, int(float64(left)/(1.3*float64(fixed)))), 1)
	share := left / time.Duration(instances)
	if b.options.Until > 0 {
		share = min(share, longestShare)
	}
	b.until = b.begun.Add(share)
	b.most = max(leastRounds, (result.MaxSamples-b.sampled)/instances)
}

func (b *budget) end(lastEpoch time.Time) {
	b.ending.add(time.Since(lastEpoch))
	b.done++
	b.left--
	b.rounds -= b.quota
	b.sampled += b.longest
	if b.options.Rounds == 0 {
		b.options.Progress.Expect(time.Since(b.proved), b.remaining())
	}
}

// over reports whether a suite is finished, given the half-width of its widest interval. No instance begins
// that can't end in time.
func (b *budget) over(widest float64) bool {
	switch {
	case b.options.Rounds > 0:
		return b.rounds <= 0
	case b.sampled > result.MaxSamples-leastRounds, b.options.Until > 0 && b.done >= minUntil && widest <= b.options.Until:
		return true
	}
	least := b.fixed() + time.Duration(leastRounds*b.workloads)*b.rounding.value(0)
	return b.done > 0 && b.remaining() < least*21/20
}

// show shows the progress, and the row whose turns are to come.
func (b *budget) show(row string, rounds int) {
	b.options.Progress.Sample(row)
	for range rounds {
		if b.options.Rounds > 0 {
			b.options.Progress.Done()
		}
	}
}

// epochBudget divides the time of an epoch among batches of rounds.
type epochBudget struct {
	budget *budget
	begun  time.Time // of the first batch
	until  time.Time // the end of the last
	first  bool      // of its instance
	taken  int       // rounds so far
	spent  time.Duration
}

type share struct {
	*budget
	workload string
	others   []string // that follow in the instance
}

func (b share) epoch() *epochBudget {
	now := time.Now()
	b.epochs++
	e := &epochBudget{budget: b.budget, first: b.epochs == 1, begun: now}
	rest := b.weight(b.workload)
	for _, other := range b.others {
		rest += b.weight(other)
	}
	further := time.Duration(len(b.others)) * (b.opening.value(b.built/10) + b.shutting.value(b.built/20))
	turns := b.until.Sub(now) - further - b.shutting.value(b.built/20) - b.ending.value(b.built/20)
	e.until = now.Add(time.Duration(float64(turns) * b.weight(b.workload) / rest))
	return e
}

// weight is a workload's share of the time of turns, relative to the other workloads.
func (b *budget) weight(workload string) float64 {
	if w, ok := b.weights[workload]; ok {
		return w
	}
	return 1
}

// next returns the number of rounds of the next batch; 0 ends the epoch.
func (e *epochBudget) next() int {
	each := e.spent / time.Duration(max(e.taken, 1))
	batch := max(1, min(int(batchTime/max(each, 1)), mostBatch))
	left := min(int(time.Until(e.until)/max(each, 1)), e.budget.most-e.taken)
	switch {
	case e.budget.options.Rounds > 0:
		if e.first && e.taken > 0 && time.Since(e.begun) > longestShare/4 {
			e.budget.quota = e.taken // the other epochs of the instance have as many
		}
		left = e.budget.quota - e.taken
	case e.taken == 0:
		return leastRounds
	}
	if e.taken == 0 {
		batch = leastRounds
	}
	return max(0, min(left, batch))
}

func (e *epochBudget) took(rounds int, spent time.Duration) {
	e.taken += rounds
	if rounds > 0 {
		e.budget.rounding.add(spent / time.Duration(rounds))
	}
	e.budget.longest = max(e.budget.longest, e.taken)
	e.spent += spent
}

// mostFilled is the share of a result file's limits after which a suite ends: the next
// instance must fit too, and whoever reads the file takes no larger one.
const mostFilled = 0.8

// full reports whether the result file has no room for a further instance of rows, and notes it.
// Each suite has its share of the file.
func (r *run) full(rows []*measuredRow) bool {
	suite := slices.IndexFunc(r.options.Suites, func(s suites.Suite) bool { return s.Name == rows[0].row.Suite })
	if r.options.Out == nil || r.options.Out.Filled()*float64(len(r.options.Suites)) < mostFilled*float64(suite+1) {
		return false
	}
	rounds := 0
	for _, row := range rows {
		rounds = max(rounds, len(row.row.Samples))
	}
	r.head.Notes = append(r.head.Notes, fmt.Sprintf("Suite %s ended after %s: the result file is full.", rows[0].row.Suite, count(rounds, "round")))
	return true
}
