// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"mustang/internal/result"
)

// fact is a name and what is known under it.
type fact struct{ Name, Value string }

// title says in a line what was run on what.
func (v *view) title() string {
	run := v.file.Run
	parts := []string{"mustang bench " + clean(run.Suite)}
	if run.Rounds > 0 {
		rounds := count(run.Rounds, "round")
		if run.DurationSeconds > 0 {
			rounds += " of " + seconds(run.DurationSeconds)
		}
		if run.Counted() {
			rounds += " of counted instructions"
		}
		parts = append(parts, fmt.Sprintf("%s, seed %d", rounds, run.Seed))
	}
	parts = append(parts, v.machineLine())
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " · ")
}

// machineLine says in a line what machine it was.
func (v *view) machineLine() string {
	m := v.file.Run.Machine
	var parts []string
	if m.CPUModel != "" {
		parts = append(parts, clean(m.CPUModel))
	}
	if m.CPUs > 0 {
		parts = append(parts, count(m.CPUs, "CPU"))
	}
	if v.file.Run.Kernel != "" {
		parts = append(parts, "Linux "+clean(v.file.Run.Kernel))
	}
	return strings.Join(parts, ", ")
}

// warnings lists what the reader must know before the figures.
func (v *view) warnings() []string {
	run := v.file.Run
	var out []string
	done := v.roundsDone()
	progress := fmt.Sprintf("%d of %s done", done, count(run.Rounds, "round"))
	if run.Counted() { // one network after the other
		out = append(out, countedWarning)
		progress = "there are rows that it did not come to"
	}
	switch {
	case run.Interrupted:
		out = append(out, "This run was interrupted: "+progress+".")
	case run.Finished.IsZero():
		out = append(out, "This run has not finished: "+progress+".")
	}
	if run.Quick {
		out = append(out, "This was a quick run: it shows that everything works, its figures are no base for claims.")
	}
	if done > 0 && done < minRounds {
		out = append(out, fmt.Sprintf("Too few rounds (%d): a 95 %% interval takes %d.", done, minRounds))
	}
	for _, note := range run.Notes {
		out = append(out, clean(note))
	}
	return out
}

// machine lists the hardware and what ran on it.
func (v *view) machine() []fact {
	run := v.file.Run
	facts := []fact{
		{"Processor", clean(run.Machine.CPUModel)},
		{"CPUs", positive(run.Machine.CPUs)},
		{"Architecture", clean(run.Machine.Arch)},
		{"Virtualisation", clean(run.Machine.Virtualisation)},
		{"Kernel", clean(run.Kernel)},
	}
	if run.Machine.MemoryBytes > 0 {
		facts = slices.Insert(facts, 3, fact{"Memory", memory(run.Machine.MemoryBytes)})
	}
	for _, name := range slices.Sorted(maps.Keys(run.Versions)) {
		facts = append(facts, fact{clean(name), clean(run.Versions[name])})
	}
	return present(facts)
}

// settings lists what may move the figures.
func (v *view) settings() []fact {
	run := v.file.Run
	var facts []fact
	for _, name := range slices.Sorted(maps.Keys(run.Settings)) {
		facts = append(facts, fact{clean(name), clean(run.Settings[name])})
	}
	for _, name := range slices.Sorted(maps.Keys(run.Offloads)) {
		facts = append(facts, fact{"offload " + clean(name), clean(run.Offloads[name])})
	}
	for _, name := range slices.Sorted(maps.Keys(run.Pinning)) {
		facts = append(facts, fact{clean(name) + " runs on", "CPU " + strconv.Itoa(run.Pinning[name])})
	}
	return present(facts)
}

// method lists how it was measured.
func (v *view) method() []fact {
	run := v.file.Run
	facts := []fact{
		{"Rounds", fmt.Sprintf("%d of %d", v.roundsDone(), run.Rounds)},
		{"Order", "in each round every row once, in random order"},
		{"Seed", strconv.FormatUint(run.Seed, 10)},
		{"Engines", strings.Join(v.engines(), ", ")},
		{"Started", stamp(run.Started)},
		{"Finished", stamp(run.Finished)},
	}
	if run.Counted() {
		facts[1].Value = "one network after the other; in each round every row of it once, in random order"
		facts = slices.Insert(facts, 3, fact{"Clock", "one tick for each instruction, of any kind; none while idle"})
		return present(facts)
	}
	if run.DurationSeconds == 0 {
		return present(facts)
	}
	facts = slices.Insert(facts, 3,
		fact{"Measured per sample", seconds(run.DurationSeconds)}, fact{"Warm-up, not counted", seconds(run.WarmupSeconds)})
	return present(facts)
}

// engines lists the load generators.
func (v *view) engines() []string {
	seen := map[string]bool{}
	for _, row := range v.file.Rows {
		if row.Status == result.StatusOK {
			seen[clean(row.Engine)] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// command is what repeats the run, on one line.
func (v *view) command() string {
	run := v.file.Run
	line := "mustang bench " + clean(run.Suite)
	if run.Counted() {
		return fmt.Sprintf("mustang bench --vm %s --rounds %d --seed %d", clean(run.Suite), run.Rounds, run.Seed)
	}
	if run.Quick {
		line += " --quick"
	}
	line += fmt.Sprintf(" --rounds %d", run.Rounds)
	if run.DurationSeconds > 0 {
		line += " --duration " + seconds(run.DurationSeconds)
	}
	return fmt.Sprintf("%s --seed %d", line, run.Seed)
}

// positive prints n, or nothing when it is not known.
func positive(n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// stamp prints a time, or nothing when there is none.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// present drops facts that nothing is known of.
func present(facts []fact) []fact {
	return slices.DeleteFunc(facts, func(f fact) bool { return f.Value == "" })
}
