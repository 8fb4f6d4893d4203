// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"mustang/internal/result"
)

type group struct {
	Title string
	Facts []fact
}

type fact struct{ Name, Value string }

const (
	// minRounds is the fewest samples that give a 95 % interval of a median: five enclose it in only 94 % of cases.
	minRounds = 6
	// usualLonger is the time of a run that is more certain, and usualSlice the default length of a turn, in seconds.
	usualLonger, usualSlice = 600, 0.001
	// countedWarning precedes figures of counted instructions.
	countedWarning = "Instructions, not time: an emulated processor counted them, and fewer is better. " +
		"They repeat from run to run and leave out caches, parallelism and network cards."
	repeatRun = " Repeat the run on a quiet machine." // ends the notes on what disturbed a run
)

// run is a run with its rows, whose strings are clean.
type run struct {
	result.Run
	rows []result.Row
}

func (r run) headline() string {
	rounds := ""
	if r.Rounds > 0 || r.sliced() {
		rounds = countOf(cmp.Or(r.Rounds, r.roundsDone()), "round")
		if r.sliced() {
			anew := r.anew()
			rounds += fmt.Sprintf(" of two %s turns, %s %s", seconds(r.SliceSeconds), LowerFirst(anew.Name), anew.Value)
		}
		if r.DurationSeconds > 0 {
			rounds += " of " + seconds(r.DurationSeconds)
		}
		if r.Counted() {
			rounds += " of counted instructions"
		}
		rounds += fmt.Sprintf(", seed %d", r.Seed)
	}
	return joined(" · ", "mustang bench "+r.Suite, rounds, r.machineLine())
}

func (r run) sliced() bool { return r.SliceSeconds > 0 }

// anew counts how often the networks of the rows were built.
func (r run) anew() fact {
	labs := map[int]bool{}
	for _, row := range r.rows {
		for _, p := range row.Positions {
			labs[p.Lab] = true
		}
	}
	out := fact{"Networks built", "once"}
	if n := len(labs); n != 1 {
		out.Value = integer(n) + " times"
	}
	return out
}

func (r run) machineLine() string {
	cpus, kernel := "", ""
	if r.Machine.CPUs > 0 {
		cpus = countOf(r.Machine.CPUs, "CPU")
	}
	if r.Kernel != "" {
		kernel = "Linux " + r.Kernel
	}
	return joined(", ", r.Machine.CPUModel, cpus, kernel)
}

func (r run) warnings() (out []string) {
	done := r.roundsDone()
	progress := fmt.Sprintf("%d of %s done", done, countOf(r.Rounds, "round"))
	if r.Rounds == 0 {
		progress = countOf(done, "round") + " done"
	}
	if r.Counted() { // one network after the other
		out = append(out, countedWarning)
		progress = "some rows were not measured"
	}
	if r.Interrupted {
		out = append(out, "This run was interrupted: "+progress+".")
	} else if r.Finished.IsZero() {
		out = append(out, "This run has not finished: "+progress+".")
	}
	if r.Quick {
		out = append(out, "This was a quick run: it shows that everything works. Do not base claims on its figures.")
	}
	if done > 0 && done < minRounds {
		out = append(out, fmt.Sprintf("Too few rounds (%d): a 95 %% interval takes %d.", done, minRounds))
	}
	return append(out, filter(r.Notes, func(note string) bool { return !strings.HasSuffix(note, repeatRun) })...)
}

// disturbances are the notes on what disturbed the run; empty without any.
func (r run) disturbances() string {
	var out []string
	for _, note := range r.Notes { // of several suites
		if note, found := strings.CutSuffix(note, repeatRun); found && !slices.Contains(out, note) {
			out = append(out, note)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return strings.Join(out, " ") + repeatRun
}

// programName matches a version that begins with the program's name.
var programName = regexp.MustCompile(`^\pL+ (v?[0-9])`)

func (r run) machine() []fact {
	facts := []fact{
		{"Processor", r.Machine.CPUModel}, {"CPUs", strings.TrimPrefix(strconv.Itoa(r.Machine.CPUs), "0")},
		{"Architecture", r.Machine.Arch}, {"Memory", memorySize(r.Machine.MemoryBytes)},
		{"Virtualisation", r.Machine.Virtualisation}, {"Kernel", r.Kernel},
	}
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		facts = append(facts, fact{name, programName.ReplaceAllString(r.Versions[name], "$1")})
	}
	return present(facts)
}

func (r run) placement() []fact {
	where := ""
	if r.sharedCPU() {
		where = "on one CPU, except in rows that name two: a row shows the work for a packet, not what two CPUs do at once"
	} else if len(r.Pinning) > 1 {
		where = "on different CPUs"
	}
	facts := []fact{{"Both ends", where}}
	for _, name := range slices.Sorted(maps.Keys(r.Pinning)) {
		facts = append(facts, fact{name + " runs on", "CPU " + strconv.Itoa(r.Pinning[name])})
	}
	return present(facts)
}

func (r run) sharedCPU() bool {
	cpus := slices.Sorted(maps.Values(r.Pinning))
	return len(cpus) > 1 && cpus[0] == cpus[len(cpus)-1]
}

// longer is the flag for ten minutes or four times as long; empty where that would not narrow the intervals.
func (r run) longer() string {
	switch {
	case r.Counted():
		return ""
	case r.Rounds > 0:
		return fmt.Sprintf("--rounds %d", 4*r.Rounds)
	}
	return fmt.Sprintf("--time %.0fm", max(usualLonger, 4*r.TimeSeconds)/60)
}

func factsOf(all map[string]string) []fact {
	return present(convert(slices.Sorted(maps.Keys(all)), func(name string) fact {
		return fact{strings.ReplaceAll(name, "_", " "), all[name]}
	}))
}

func (r run) method() []fact {
	order, clock := "in each round every row once, in random order", ""
	var measured []fact
	switch {
	case r.Counted():
		order = "one network after the other; in each round every row of it once, in random order"
		clock = "one tick for each instruction, of any kind; none while idle"
	case r.sliced():
		order = "in each round a turn of each row that takes part in it, in random order, and one more in the reverse " +
			"order; slow rows take part in fewer rounds, and the links of pod-links follow each other"
		measured = []fact{{"Length of a turn", seconds(r.SliceSeconds)}, r.anew()}
	case r.DurationSeconds > 0:
		measured = []fact{{"Measured per sample", seconds(r.DurationSeconds)},
			{"Warm-up, not counted", cmp.Or(seconds(r.WarmupSeconds), "0ms")}}
	}
	ok := filter(r.rows, func(row result.Row) bool { return row.Status == result.StatusOK })
	engines := slices.Sorted(slices.Values(convert(ok, func(row result.Row) string { return row.Engine })))
	return present(slices.Concat([]fact{{"Rounds", r.roundsText()}, {"Order", order},
		{"Seed", strconv.FormatUint(r.Seed, 10)}, {"Clock", clock}}, measured,
		[]fact{{"Engines", strings.Join(slices.Compact(engines), ", ")}, {"Started", timestamp(r.Started)},
			{"Finished", timestamp(r.Finished)}}))
}

func (r run) roundsText() string {
	most := r.roundsDone()
	least := most
	for _, row := range r.rows {
		if n := len(row.Samples); n > 0 {
			least = min(least, n)
		}
	}
	switch {
	case r.Rounds > 0:
		return fmt.Sprintf("%d of %d", most, r.Rounds)
	case least < most:
		return fmt.Sprintf("%s to %s, by the row", integer(least), integer(most))
	}
	return integer(most)
}

func (r run) command() string {
	if r.Counted() {
		return fmt.Sprintf("mustang bench --vm %s --rounds %d --seed %d", r.Suite, r.Rounds, r.Seed)
	}
	line, slice := "mustang bench "+r.Suite, r.SliceSeconds
	if r.Quick {
		line += " --quick"
	}
	if r.Rounds > 0 {
		line += fmt.Sprintf(" --rounds %d", r.Rounds)
	}
	if slice == usualSlice { // bench makes it longer where a path needs it
		slice = 0
	}
	for i, value := range []float64{r.TimeSeconds, slice, r.DurationSeconds} {
		if value > 0 {
			line += []string{" --time ", " --slice ", " --duration "}[i] + seconds(value)
		}
	}
	return fmt.Sprintf("%s --seed %d", line, r.Seed)
}

func (r run) roundsDone() (done int) {
	for _, row := range r.rows {
		done = max(done, len(row.Samples))
	}
	return done
}

func present(facts []fact) []fact { return filter(facts, func(f fact) bool { return f.Value != "" }) }
