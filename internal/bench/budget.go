// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
	"time"

	"mustang/internal/bench/stats"
	"mustang/internal/bench/suites"
	"mustang/internal/result"
)

// Numbers of instances of a run.
const (
	// minInstances is the least number of a timed run, as its intervals rest on the
	// differences between them.
	minInstances = 3
	// usualInstances is the number that a run begins with, quickInstances that of a quick
	// one. After minInstances the variances seen so far decide.
	usualInstances, quickInstances = 8, 4
	// minUntil is the least number before a run ends because its intervals are narrow:
	// a look at the first few would stop at those that are narrow by chance.
	minUntil = 10
)

// longestShare is the longest time of an instance, before its variance is known.
const longestShare = 20 * time.Second

// leastRounds is the least number of rounds of an instance, whatever the time. The first
// minInstances have pilotRounds at most, which show the variances: those to come are then as
// many, and as long, as gives the narrowest intervals. Slow rows take part in one of them.
const leastRounds, pilotRounds = 3, mostRounds

// batchTime is the time after which an interrupt ends the turns, and progress is shown.
const batchTime = 500 * time.Millisecond

// roundTime is about how long a round of one workload takes.
const roundTime = 200 * time.Millisecond

// mostBatch is the greatest number of rounds in that time.
const mostBatch = 1000

// budget divides the time of a suite among its instances, or its rounds where their number
// is given.
type budget struct {
	options   Options
	started   time.Time
	workloads int
	done      int       // instances so far
	left      int       // instances to come
	rounds    int       // to come, where their number is given
	proved    time.Time // when the paths were proved
	// Of the present instance: its begin and end, and its rounds of each workload.
	begun, deadline time.Time
	quota, epochs   int
	// sampled is the number of rounds of all instances, most that of the present one at
	// most, and longest that of its longest epoch: a row has [result.MaxSamples].
	sampled, most, longest int
	// spent is the time of all instances, turned the part of it for turns, of so many rounds.
	spent, turned time.Duration
	turns         int
}

// newBudget divides the time of a suite that began at a moment.
func newBudget(o Options, started time.Time, workloads int) *budget {
	p := &budget{options: o, workloads: max(workloads, 1), started: started, left: max(usualInstances, int(o.Time/longestShare)), rounds: o.Rounds, proved: time.Now()}
	switch {
	case o.Rounds > 0:
		p.left = min(usualInstances, (o.Rounds+leastRounds-1)/leastRounds)
		o.Progress.Start(o.Rounds*workloads, roundTime)
		return p
	case o.Quick:
		p.left = quickInstances
	}
	// Each instance is about as long as the proof at least, which builds the labs too.
	o.Progress.Expect(0, max(p.remaining(), minInstances*p.proved.Sub(started)))
	return p
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

// remaining is the time to come.
func (p *budget) remaining() time.Duration { return p.options.Time - time.Since(p.started) }

// begin begins an instance.
func (p *budget) begin() {
	p.begun, p.epochs = time.Now(), 0
	left := max(p.left, 1) // slow rounds need more instances than planned
	share := p.remaining() / time.Duration(left)
	if p.options.Until > 0 {
		share = min(share, longestShare)
	}
	p.deadline = p.begun.Add(share)
	p.quota = (p.rounds + left - 1) / left
	p.most, p.longest = max(leastRounds, (result.MaxSamples-p.sampled)/left), 0
}

// end ends an instance, and plans those to come by the variances seen so far.
func (p *budget) end(pilot stats.Components) {
	p.spent += time.Since(p.begun)
	p.done++
	p.left--
	p.rounds -= p.quota
	p.sampled += p.longest
	if p.options.Rounds == 0 && p.done >= minInstances && p.turns > 0 {
		costs := stats.Costs{Lab: (p.spent - p.turned) / time.Duration(p.done), Round: p.turned * time.Duration(p.workloads) / time.Duration(p.turns)}
		planned := stats.Plan(pilot, costs, p.options.Time)
		each := planned.Time(costs) / time.Duration(planned.Labs)
		p.left = int((p.remaining() + each/2) / each)
	}
	if p.options.Rounds == 0 {
		p.options.Progress.Expect(time.Since(p.proved), p.toCome())
	}
}

// toCome is about how long the instances to come take.
func (p *budget) toCome() time.Duration {
	if p.done >= minInstances && p.left <= 0 {
		return 0
	}
	return max(p.remaining(), p.spent/time.Duration(p.done)*time.Duration(minInstances-p.done))
}

// over reports whether a suite is measured, whose widest interval is given.
func (p *budget) over(widest float64) bool {
	switch {
	case p.options.Rounds > 0:
		return p.rounds <= 0
	case p.sampled > result.MaxSamples-leastRounds, p.options.Until > 0 && p.done >= minUntil && widest <= p.options.Until:
		return true
	}
	return p.done >= minInstances && p.left <= 0
}

// show shows the progress, and the row whose turns are to come.
func (p *budget) show(row string, rounds int) {
	p.options.Progress.Sample(row)
	for range rounds {
		if p.options.Rounds > 0 {
			p.options.Progress.Done()
		}
	}
}

// epochBudget divides the time of an epoch among batches of rounds.
type epochBudget struct {
	budget *budget
	begun  time.Time // of the first batch
	until  time.Time // the end of the last
	first  bool      // of its instance
	alone  bool      // of rows that are compared with none
	taken  int       // rounds so far
	spent  time.Duration
}

// epoch begins the rounds of an epoch, after which others follow in this instance. Rows that
// are compared with none leave the time to others: they take the least number of rounds.
func (p *budget) epoch(others int, alone bool) *epochBudget {
	now := time.Now()
	p.epochs++
	e := &epochBudget{budget: p, first: p.epochs == 1, alone: alone, begun: now, until: now}
	if !alone {
		e.until = now.Add(p.deadline.Sub(now) / time.Duration(others+1))
	}
	return e
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
	case e.budget.done < minInstances:
		left = min(left, pilotRounds-e.taken)
	}
	if e.taken == 0 {
		batch = leastRounds
	}
	return max(0, min(left, batch))
}

// took counts a batch.
func (e *epochBudget) took(rounds int, spent time.Duration) {
	e.taken += rounds
	e.budget.longest = max(e.budget.longest, e.taken)
	e.spent += spent
	if !e.alone {
		e.budget.turned += spent
		e.budget.turns += rounds
	}
}

// mostFilled is the share of a result file's limits after which a suite ends: the next
// instance must fit too, and whoever reads the file takes no larger one.
const mostFilled = 0.8

// mostRoundSamples is the most samples that a number of rounds may make: about as many fit in a
// result file.
const mostRoundSamples = 2_000_000

// checkRoom returns an error if the rounds of rows would not fit in a result file.
func (o Options) checkRoom(rows int) error {
	if n := rows * o.Rounds; n > mostRoundSamples {
		return fmt.Errorf("--rounds %d: %d rows would have %d samples, and a result file holds %d", o.Rounds, rows, n, mostRoundSamples)
	}
	return nil
}

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
	r.head.Notes = append(r.head.Notes, fmt.Sprintf("Suite %s ended after %s: the result file has no room for more.", rows[0].row.Suite, count(rounds, "round")))
	return true
}
