// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/aclements/go-moremath/mathx"
	"github.com/aclements/go-moremath/stats"

	"mustang/internal/result"
)

const significance = 0.05 // the corrected p-value below which a difference counts as found

// NamedRun is a result file with a unique name; empty if it is the only file.
type NamedRun struct {
	Name string
	File result.File
}

// Comparison compares runs with the first of them. Its differences include all other changes between the runs.
// Strings are free of control characters.
type Comparison struct {
	Names    []string         `json:"runs"`     // the names of the runs, the old one first
	Warnings []runWarning     `json:"warnings"` // the runs that are quick, unfinished, disturbed or noisy
	Differs  []property       `json:"differs"`  // names the properties of machine, settings and method that differ
	Tables   []*comparedTable `json:"tables"`   // one for each suite and workload, in the order of the old file
	Missing  []missing        `json:"missing"`  // the rows that some of the runs measured, and others did not

	measured map[[2]string]bool // by run and suite
	lost     []string           // rows that the old run measured and another did not
}

type comparedTable struct {
	result.Key                  // without ID
	Unit         string         `json:"unit"`
	LessIsBetter bool           `json:"less_is_better"`
	Lines        []comparedLine `json:"lines"`
	// Geomean has the geometric mean of each run's figures over the rows that all runs measured; empty without such
	// rows, or if a figure is 0.
	Geomean []float64 `json:"geomean"`
	// GeomeanCI95 has for each run but the first an interval of the ratio of the means. It is as wide as the geometric
	// mean of the rows' intervals, so it holds for any dependence between rows. nil if a row lacks an interval.
	GeomeanCI95 []*[2]float64 `json:"geomean_ci95"`
}

type comparedLine struct {
	ID      string            `json:"id"`
	Figures []*comparedFigure `json:"figures"` // one for each run; nil if the run did not measure the row
	Deltas  []*delta          `json:"deltas"`  // compares each run but the first with the first; nil where it can't
}

type comparedFigure struct {
	Median  float64     `json:"median"`
	CI95    *[2]float64 `json:"ci95"`
	Samples int         `json:"samples"`
}

type delta struct {
	// Ratio is new divided by old, with its 95 % interval; nil if there are too few labs or samples for one.
	Ratio float64     `json:"ratio"`
	CI95  *[2]float64 `json:"ci95"`
	P     float64     `json:"p"`    // the p-value corrected for the number of differences in the table
	Test  string      `json:"test"` // empty with too few networks. Over: the unit of its values; Old, New: how many
	Over  string      `json:"over"`
	Old   int         `json:"old_units"`
	New   int         `json:"new_units"`
	Found bool        `json:"found"` // true if P is below [significance], or if only the new figure is 0
	Worse bool        `json:"worse"` // true if a difference was found, in the direction that is worse
}

type missing struct {
	result.Key
	// Run is the name of the run that did not measure it, and Reason its reason; empty if the row is not in the file.
	Run    string `json:"run"`
	Reason string `json:"reason,omitempty"`
}

// Compare compares runs with the first. It refuses to compare times with counted instructions.
func Compare(runs ...NamedRun) (*Comparison, error) {
	runs = cleaned(reflect.ValueOf(runs)).Interface().([]NamedRun)
	c := &Comparison{
		Warnings: runWarnings(runs), Differs: differences(runs), Tables: []*comparedTable{}, Missing: []missing{},
		measured: map[[2]string]bool{},
	}
	var keys []result.Key
	rows := map[result.Key][]result.Row{} // by run, empty where its file lacks the row
	for i, run := range runs {
		if run.File.Run.Counted() != runs[0].File.Run.Counted() {
			return nil, fmt.Errorf("%s and %s can't be compared: %s, %s", runs[0].Name, run.Name, clockOf(runs[0]), clockOf(run))
		}
		c.Names = append(c.Names, run.Name)
		for _, row := range run.File.Rows {
			key := row.Key()
			if rows[key] == nil {
				rows[key] = make([]result.Row, len(runs))
				keys = append(keys, key)
			}
			rows[key][i] = row
			if measured(row) {
				c.measured[[2]string{run.Name, row.Suite}] = true
			}
		}
	}
	tables := map[result.Key]*comparedTable{} // without ID
	for _, key := range keys {
		if !slices.ContainsFunc(rows[key], measured) {
			continue
		}
		line, err := c.line(key, rows[key])
		if err != nil {
			return nil, err
		}
		if line.Figures[0] == nil || !slices.ContainsFunc(rows[key][1:], measured) {
			continue
		}
		old := rows[key][0]
		key.ID = ""
		t := tables[key]
		if t == nil {
			t = &comparedTable{Key: key, Unit: old.Unit, LessIsBetter: !old.MoreIsBetter()}
			tables[key], c.Tables = t, append(c.Tables, t)
		}
		t.Lines = append(t.Lines, line)
	}
	for _, t := range c.Tables {
		t.judge()
	}
	return c, nil
}

func (c *Comparison) line(key result.Key, rows []result.Row) (comparedLine, error) {
	line, old := comparedLine{ID: key.ID}, rows[0]
	for i, row := range rows {
		var figure *comparedFigure
		var found *delta
		switch {
		case !measured(row):
			m := missing{Key: key, Run: c.Names[i]}
			if row.Status != "" {
				m.Reason = row.Status + ": " + row.Reason
			}
			c.Missing = append(c.Missing, m)
			if measured(old) {
				c.lost = append(c.lost, key.ID+" "+key.Workload)
			}
		case measured(old) && row.Unit != old.Unit:
			return line, fmt.Errorf("%s and %s can't be compared: %s %s is in %s and %s",
				c.Names[0], c.Names[i], key.ID, key.Workload, old.Unit, row.Unit)
		default:
			figure = &comparedFigure{row.Median, row.CI95, len(row.Samples)}
			if i > 0 && measured(old) {
				found = contrast(old, row)
			}
		}
		line.Figures = append(line.Figures, figure)
		if i > 0 {
			line.Deltas = append(line.Deltas, found)
		}
	}
	return line, nil
}

func clockOf(r NamedRun) string {
	if r.File.Run.Counted() {
		return r.Name + " counted instructions"
	}
	return r.Name + " measured time"
}

func measured(r result.Row) bool { return r.Status == result.StatusOK && len(r.Samples) > 0 }

func (t *comparedTable) judge() {
	var deltas []*delta
	for _, line := range t.Lines {
		deltas = append(deltas, filter(line.Deltas, func(d *delta) bool { return d != nil })...)
	}
	holm(deltas)
	for _, d := range deltas {
		d.Found = d.P < significance && d.Ratio != 1 || d.Ratio == 0
		d.Worse = d.Found && d.Ratio > 1 == t.LessIsBetter
	}
	all := filter(t.Lines, func(l comparedLine) bool { return !slices.Contains(l.Figures, nil) })
	if len(all) == 0 {
		return
	}
	for i := range all[0].Figures {
		figures := convert(all, func(l comparedLine) float64 { return l.Figures[i].Median })
		if slices.Min(figures) <= 0 {
			t.Geomean, t.GeomeanCI95 = nil, nil
			return
		}
		t.Geomean = append(t.Geomean, stats.GeoMean(figures))
		if i > 0 {
			t.GeomeanCI95 = append(t.GeomeanCI95, meanInterval(all, i-1, t.Geomean[i]/t.Geomean[0]))
		}
	}
}

// meanInterval returns the interval of a run's mean over the old one; nil if a row lacks an interval.
func meanInterval(lines []comparedLine, run int, ratio float64) *[2]float64 {
	var below, above float64
	for _, line := range lines {
		d := line.Deltas[run]
		if d == nil || d.CI95 == nil || d.CI95[0] <= 0 {
			return nil
		}
		below += math.Log(d.CI95[0] / d.Ratio)
		above += math.Log(d.CI95[1] / d.Ratio)
	}
	n := float64(len(lines))
	return &[2]float64{ratio * math.Exp(below/n), ratio * math.Exp(above/n)}
}

func (c *Comparison) rows(is func(t *comparedTable, old, now *comparedFigure, d *delta) bool) (out []string) {
	for _, t := range c.Tables {
		for _, line := range t.Lines {
			for i, d := range line.Deltas {
				if is(t, line.Figures[0], line.Figures[i+1], d) {
					out = append(out, line.ID+" "+t.Workload)
					break
				}
			}
		}
	}
	return out
}

// Worse returns the rows, with their workloads, that a run found worse by more than a share
// of the old figure: 0.05 is 5 %. Any figure is worse than 0 where less is better.
func (c *Comparison) Worse(threshold float64) []string {
	return c.rows(func(t *comparedTable, old, now *comparedFigure, d *delta) bool {
		if d == nil {
			return now != nil && t.LessIsBetter && now.Median > old.Median
		}
		return d.Worse && math.Abs(d.Ratio-1) > threshold
	})
}

// Lost returns the rows, with their workloads, that the old run measured and another did not, or measured without a
// verdict: the figure fell to 0 where less is better, or the samples are too few to find a difference.
func (c *Comparison) Lost() (out []string) {
	unjudged := c.rows(func(t *comparedTable, old, now *comparedFigure, d *delta) bool {
		zero := now != nil && t.LessIsBetter && now.Median == 0 && old.Median > 0
		return zero || d != nil && d.Test == mannWhitney && !d.Found && 2/mathx.Choose(d.Old+d.New, d.Old) >= significance
	})
	for _, name := range slices.Concat(c.lost, unjudged) {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// Uncertain returns the rows whose intervals allow a difference of more than a share, and the number of all rows.
func (c *Comparison) Uncertain(threshold float64) (rows []string, all int) {
	for _, t := range c.Tables {
		all += len(t.Lines)
	}
	return c.rows(func(_ *comparedTable, _, _ *comparedFigure, d *delta) bool {
		return d != nil && !d.Found && (d.CI95 == nil || (d.CI95[1]-d.CI95[0])/2 > threshold)
	}), all
}

type property struct {
	Name   string   `json:"name"`
	Values []string `json:"values"`
}

func properties(r result.Run) []map[string]string {
	prefixed := func(prefix string, of map[string]string) map[string]string {
		out := map[string]string{}
		for name, value := range of {
			out[prefix+name] = value
		}
		return out
	}
	cpus := map[string]string{}
	for process, n := range r.Pinning {
		cpus["CPU of "+process] = strconv.Itoa(n)
	}
	return []map[string]string{
		{"cpu": r.Machine.CPUModel}, {"cpus": strconv.Itoa(r.Machine.CPUs)},
		{"memory": fmt.Sprintf("%.1f GiB", float64(r.Machine.MemoryBytes)/(1<<30))}, {"architecture": r.Machine.Arch},
		{"virtualisation": r.Machine.Virtualisation}, {"kernel": r.Kernel}, prefixed("version of ", r.Versions), r.Settings,
		prefixed("offload ", r.Offloads), cpus, {"clock": cmp.Or(r.Clock, result.ClockTime)}, {"suite": r.Suite},
		{"time of a suite": seconds(r.TimeSeconds)}, {"slice": seconds(r.SliceSeconds)},
		{"duration of a sample": seconds(r.DurationSeconds)}, {"warm-up of a sample": seconds(r.WarmupSeconds)},
		{"rounds": strconv.Itoa(r.Rounds)}, {"quick": strconv.FormatBool(r.Quick)},
	}
}

func differences(runs []NamedRun) []property {
	out := []property{}
	for i := range properties(result.Run{}) {
		values := map[string][]string{} // by name, one for each run
		for at, r := range runs {
			for name, value := range properties(r.File.Run)[i] {
				if values[name] == nil {
					values[name] = make([]string, len(runs))
				}
				values[name][at] = value
			}
		}
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if len(slices.Compact(slices.Clone(values[name]))) > 1 {
				out = append(out, property{name, values[name]})
			}
		}
	}
	return out
}

type runWarning struct {
	Run   string   `json:"run"`
	Texts []string `json:"texts"`
}

const tooNoisy = 0.05 // the distance from 1 that the interval of an A/A pair reaches in a noisy run

func runWarnings(runs []NamedRun) []runWarning {
	out := []runWarning{}
	for _, r := range runs {
		var texts []string
		if r.File.Run.Quick {
			texts = append(texts, "quick run")
		}
		if of := (run{r.File.Run, r.File.Rows}); of.Interrupted || of.Finished.IsZero() {
			texts = append(texts, "unfinished: "+countOf(of.roundsDone(), "round")+" done")
		}
		for _, note := range r.File.Run.Notes {
			if note, disturbed := strings.CutSuffix(note, "."+repeatRun); disturbed {
				texts = append(texts, LowerFirst(note))
			}
		}
		if times := repeated(r.File.Run.Comparisons); times >= 2 {
			texts = append(texts, fmt.Sprintf("the same path measured twice may differ by a factor of %.1f", times))
		} else if times-1 > tooNoisy {
			texts = append(texts, fmt.Sprintf("the same path measured twice may differ by %.1f %%", (times-1)*100))
		}
		if len(texts) > 0 {
			out = append(out, runWarning{r.Name, texts})
		}
	}
	return out
}

// repeated returns the factor by which two measurements of a path in the kernel may differ; 1 without A/A pairs.
func repeated(comparisons []result.Comparison) float64 {
	times := 1.0
	for _, c := range comparisons {
		if c.AA && c.CI95 != nil && c.CI95[0] > 0 && cmp.Or(c.Class, result.ClassKernel) == result.ClassKernel {
			times = max(times, c.CI95[1], 1/c.CI95[0])
		}
	}
	return times
}
