// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"runtime"
	"time"

	"mustang/internal/load/clock"
)

// idleTime is the time at the start of an instance in which the run idles, to measure the load of other programs.
const idleTime = 100 * time.Millisecond

// muchLoad is the number of CPUs that other programs may keep busy before a run warns: 10 ms of idleTime are 0.1.
const muchLoad = 0.2

// disturbances count the effects of other programs on a run.
type disturbances struct {
	idle, others   float64       // seconds that were watched, and of CPUs that others used in them
	rounds, spoilt int           // all rounds, and the disturbed ones
	throttled      time.Duration // by a CPU quota
}

// watch measures the load of other programs while the run idles.
func (d *disturbances) watch() error {
	machine, err := clock.OpenMachine()
	if err != nil {
		return err
	}
	defer machine.Close()
	if err := machine.Begin(); err != nil {
		return err
	}
	time.Sleep(idleTime)
	seen, err := machine.End()
	d.idle += seen.Seconds
	d.others += max(seen.BusySeconds, 0) + seen.StealSeconds
	return err
}

func (d *disturbances) notes() (notes []string) {
	if d.idle > 0 && d.others/d.idle > muchLoad {
		notes = append(notes, fmt.Sprintf("Not reliable: other programs kept %.1f of %d CPUs busy. Repeat the run on a quiet machine.",
			d.others/d.idle, runtime.NumCPU()))
	}
	if d.throttled > 0 {
		notes = append(notes,
			fmt.Sprintf("A CPU quota of this run's control group or of one above it took %v. Repeat the run without one "+
				"(cpu.max).",
				d.throttled.Round(time.Millisecond/10)))
	}
	if d.spoilt > d.rounds/mostSpoilt {
		notes = append(notes,
			fmt.Sprintf("Of %s of all workloads, %d were disturbed: the hypervisor or a quota took CPU time, or TCP sent "+
				"segments again. Repeat the run on a quiet machine.",
				count(d.rounds, "round"), d.spoilt))
	}
	return notes
}

// noteDisturbances notes the effects of other programs on a suite, named if there are several, and begins the next.
func (r *run) noteDisturbances(suite string) {
	for _, note := range r.disturbed.notes() {
		if len(r.options.Suites) > 1 {
			note = "Suite " + suite + ": " + note
		}
		r.head.Notes = append(r.head.Notes, note)
	}
	r.disturbed = disturbances{}
}

// mostSpoilt limits the share of disturbed rounds, which are repeated: one in four. If more are disturbed, they are
// part of the measurement.
const mostSpoilt = 4
