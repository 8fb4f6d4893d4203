// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"time"
)

// pace estimates the time that the rest of a run takes: until an end that is known, or by a number of samples.
type pace struct {
	started, end time.Time
	total, done  int           // samples
	each         time.Duration // expected time of one
	counted      time.Time     // when the last one was done
	later        time.Duration // expected time of the suites to come
}

// priorShare is the share of the samples whose expected time weighs as much as the measured time of as many.
const priorShare = 0.05

// left returns the time that is left.
func (p *pace) left(now time.Time) time.Duration {
	if p.total == 0 {
		return p.later + max(p.end.Sub(now), 0)
	}
	prior := priorShare * float64(p.total)
	each := (prior*p.each.Seconds() + p.counted.Sub(p.started).Seconds()) / (prior + float64(p.done))
	rest := time.Duration(each * float64(max(p.total-p.done, 0)) * float64(time.Second))
	return p.later + max(rest-now.Sub(p.counted), 0)
}

// percent returns how much of the present suite is done.
func (p *pace) percent(now time.Time) int {
	switch planned := p.end.Sub(p.started); {
	case p.total > 0:
		return 100 * min(p.done, p.total) / p.total
	case planned > 0:
		return int(100 * min(now.Sub(p.started), planned) / planned)
	}
	return 0
}

// Later adds the suites to come to the time left.
func (p *pace) Later(rest time.Duration) { p.later = rest }

// count begins a suite of a number of samples.
func (p *pace) count(now time.Time, samples int, each time.Duration) {
	*p = pace{started: now, counted: now, total: samples, each: each, later: p.later}
}

// expect sets the end of a suite whose number of samples is not known.
func (p *pace) expect(now time.Time, spent, left time.Duration) {
	*p = pace{started: now.Add(-spent), end: now.Add(left), later: p.later}
}

// finish counts a sample that is done.
func (p *pace) finish(now time.Time) {
	p.done++
	p.counted = now
}

// complete sets the number of samples done to a share of the total, to account for samples of failed rows.
func (p *pace) complete(now time.Time, part, whole int) {
	if whole > 0 {
		p.done, p.counted = p.total*part/whole, now
	}
}

// clockTime prints a time to the second, without parts that are zero.
func clockTime(d time.Duration) string {
	seconds := int(d.Round(time.Second) / time.Second)
	switch {
	case seconds < 60:
		return fmt.Sprintf("%ds", seconds)
	case seconds < 3600:
		return fmt.Sprintf("%dm%02ds", seconds/60, seconds%60)
	}
	return fmt.Sprintf("%dh%02dm", seconds/3600, seconds%3600/60)
}
