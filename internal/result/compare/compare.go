// SPDX-License-Identifier: Apache-2.0

// Package compare compares the results of runs that were made one after the other, such as
// before and after a change. Their samples are not pairs, as those of one run are, so that
// whatever else changed between the runs is in the difference; [Comparison.Differs] names
// what the files tell of it.
//
// A row that both runs measured in at least three labs is compared by Welch's t-test over the
// labs' mean logarithms; else over those of its processes, or of its connections. A row whose
// samples have no such positions is compared by the Mann-Whitney test over its samples. The p-values of a
// table are corrected for their number by Holm's method.
package compare

import (
	"fmt"
	"math"
	"slices"

	"github.com/aclements/go-moremath/mathx"
	"github.com/aclements/go-moremath/stats"

	"mustang/internal/result"
)

// Significance is the corrected p-value below which a difference counts as found.
const Significance = 0.05

// Run is a result file with a name that tells it from the others.
type Run struct {
	Name string
	File result.File
}

// Comparison compares runs with the first of them.
type Comparison struct {
	// Names are those of the runs, the old one first.
	Names []string `json:"runs"`
	// Warnings are those of the runs that are quick, interrupted, disturbed or noisy.
	Warnings []Warning `json:"warnings"`
	// Differs names the properties of machine, settings and method that differ.
	Differs []Property `json:"differs"`
	// Tables has one for each suite and workload, in the order of the old file.
	Tables []Table `json:"tables"`
	// Missing are the rows that some of the runs measured, and others did not.
	Missing []Missing `json:"missing"`

	measured map[[2]string]bool // by run and suite
}

// Property has a value for each run; empty if the run's file does not tell.
type Property struct {
	Name   string   `json:"name"`
	Values []string `json:"values"`
}

// Table compares the rows of a suite under a workload.
type Table struct {
	Suite    string `json:"suite"`
	Workload string `json:"workload"`
	Flows    int    `json:"flows"`
	// Setup is that of the rows.
	Setup result.Setup `json:"setup,omitzero"`
	Unit  string       `json:"unit"`
	// LessIsBetter tells the direction of the unit.
	LessIsBetter bool   `json:"less_is_better"`
	Lines        []Line `json:"lines"`
	// Geomean has the geometric mean of each run's figures over the rows that all runs
	// measured; empty if there are none, or if a figure is 0.
	Geomean []float64 `json:"geomean"`
	// GeomeanCI95 has for each run but the first an interval of the ratio of the means: as wide
	// as the geometric mean of the rows' intervals, which holds however rows depend on each
	// other. nil where a row has none.
	GeomeanCI95 []*[2]float64 `json:"geomean_ci95"`
}

// Line compares a row.
type Line struct {
	ID string `json:"id"`
	// Figures has one for each run; nil if the run did not measure the row.
	Figures []*Figure `json:"figures"`
	// Deltas compares each run but the first with the first; nil where it can't.
	Deltas []*Delta `json:"deltas"`
}

// Figure is a row's figure as its file has it.
type Figure struct {
	Median  float64     `json:"median"`
	CI95    *[2]float64 `json:"ci95"`
	Samples int         `json:"samples"`
}

// Values of [Delta.Test].
const (
	Welch       = "welch-t"
	MannWhitney = "mann-whitney"
)

// Values of [Delta.Over].
const (
	Labs        = "labs"
	Processes   = "processes"
	Connections = "connections"
	Samples     = "samples"
)

// Delta is the difference of a row between two runs.
type Delta struct {
	// Ratio is new divided by old, with its 95 % interval; nil if there are too few labs
	// or samples for one.
	Ratio float64     `json:"ratio"`
	CI95  *[2]float64 `json:"ci95"`
	// P is the p-value corrected for the number of differences in the table.
	P float64 `json:"p"`
	// Test is the test, and Over what its values are, of which Old and New are the numbers.
	Test string `json:"test"`
	Over string `json:"over"`
	Old  int    `json:"old_units"`
	New  int    `json:"new_units"`
	// Found tells that P is below [Significance], or that the new figure alone is 0.
	Found bool `json:"found"`
	// Worse tells that a difference was found, in the direction that is worse.
	Worse bool `json:"worse"`
}

// Missing is a row that a run did not measure.
type Missing struct {
	Suite    string `json:"suite"`
	ID       string `json:"id"`
	Workload string `json:"workload"`
	Flows    int    `json:"flows"`
	// Setup is that of the rows.
	Setup result.Setup `json:"setup,omitzero"`
	// Run is the name of the run that did not measure it, and Reason its reason; empty if
	// the row is not in the file.
	Run    string `json:"run"`
	Reason string `json:"reason,omitempty"`
}

// Runs compares runs with an old one. It refuses to compare times with counted
// instructions.
func Runs(old Run, others ...Run) (*Comparison, error) {
	runs := append([]Run{old}, others...)
	c := &Comparison{
		Warnings: warnings(runs), Differs: differences(runs), Tables: []Table{}, Missing: []Missing{},
		measured: map[[2]string]bool{},
	}
	rows := make([]map[result.Key]result.Row, len(runs))
	var keys []result.Key
	known := map[result.Key]bool{}
	for i, run := range runs {
		if run.File.Run.Counted() != old.File.Run.Counted() {
			return nil, fmt.Errorf("%s and %s can't be compared: %s, %s", old.Name, run.Name, clockOf(old), clockOf(run))
		}
		c.Names = append(c.Names, run.Name)
		rows[i] = map[result.Key]result.Row{}
		for _, row := range run.File.Rows {
			key := row.Key()
			rows[i][key] = row
			if !measured(row) {
				continue
			}
			c.measured[[2]string{run.Name, row.Suite}] = true
			if !known[key] {
				known[key] = true
				keys = append(keys, key)
			}
		}
	}
	index := map[result.Key]int{} // without ID
	for _, key := range keys {
		of := make([]result.Row, len(runs))
		for i := range runs {
			of[i] = rows[i][key]
		}
		line, err := c.line(key, of)
		if err != nil {
			return nil, err
		}
		if line == nil {
			continue
		}
		key.ID = ""
		i, ok := index[key]
		if !ok {
			i = len(c.Tables)
			index[key] = i
			c.Tables = append(c.Tables, Table{
				Suite: key.Suite, Workload: key.Workload, Flows: key.Flows, Setup: key.Setup,
				Unit: of[0].Unit, LessIsBetter: !of[0].MoreIsBetter(),
			})
		}
		c.Tables[i].Lines = append(c.Tables[i].Lines, *line)
	}
	for i := range c.Tables {
		c.Tables[i].judge()
	}
	return c, nil
}

// line compares a row, and notes the runs that did not measure it; nil if the old run, or all others, did not. A row
// that is not in a file is empty.
func (c *Comparison) line(key result.Key, rows []result.Row) (*Line, error) {
	line := &Line{ID: key.ID}
	compared, old := false, rows[0]
	for i, row := range rows {
		var figure *Figure
		var delta *Delta
		switch {
		case !measured(row):
			m := Missing{
				Suite: key.Suite, ID: key.ID, Workload: key.Workload, Flows: key.Flows, Setup: key.Setup, Run: c.Names[i],
			}
			if row.Status != "" {
				m.Reason = row.Status + ": " + row.Reason
			}
			c.Missing = append(c.Missing, m)
		case measured(old) && row.Unit != old.Unit:
			return nil, fmt.Errorf("%s and %s can't be compared: %s %s is in %s and %s",
				c.Names[0], c.Names[i], key.ID, key.Workload, old.Unit, row.Unit)
		default:
			figure = &Figure{row.Median, row.CI95, len(row.Samples)}
			if i > 0 && measured(old) {
				compared = true
				delta = contrast(old, row)
			}
		}
		line.Figures = append(line.Figures, figure)
		if i > 0 {
			line.Deltas = append(line.Deltas, delta)
		}
	}
	if !compared {
		return nil, nil
	}
	return line, nil
}

func clockOf(r Run) string {
	if r.File.Run.Counted() {
		return r.Name + " counted instructions"
	}
	return r.Name + " measured time"
}

func measured(r result.Row) bool { return r.Status == result.StatusOK && len(r.Samples) > 0 }

// judge corrects the p-values of a table, decides on its differences, and takes the means.
func (t *Table) judge() {
	var deltas []*Delta
	for _, line := range t.Lines {
		for _, d := range line.Deltas {
			if d != nil {
				deltas = append(deltas, d)
			}
		}
	}
	holm(deltas)
	for _, d := range deltas {
		d.Found = d.P < Significance && d.Ratio != 1 || d.Ratio == 0
		d.Worse = d.Found && d.Ratio > 1 == t.LessIsBetter
	}
	if t.Geomean = t.means(); t.Geomean == nil {
		return
	}
	for i := range t.Geomean[1:] {
		t.GeomeanCI95 = append(t.GeomeanCI95, t.meanInterval(i))
	}
}

// meanInterval returns the interval of a run's mean over the old one.
func (t *Table) meanInterval(run int) *[2]float64 {
	ratio := t.Geomean[run+1] / t.Geomean[0]
	var below, above, n float64
	for _, line := range t.Lines {
		if slices.Contains(line.Figures, nil) {
			continue
		}
		d := line.Deltas[run]
		if d == nil || d.CI95 == nil || d.CI95[0] <= 0 {
			return nil
		}
		below += math.Log(d.CI95[0] / d.Ratio)
		above += math.Log(d.CI95[1] / d.Ratio)
		n++
	}
	return &[2]float64{ratio * math.Exp(below/n), ratio * math.Exp(above/n)}
}

// means returns the geometric mean of each run's figures; nil if there are none, or one is not positive.
func (t *Table) means() []float64 {
	runs := make([][]float64, len(t.Lines[0].Figures))
	for _, line := range t.Lines {
		if slices.Contains(line.Figures, nil) {
			continue
		}
		for i, f := range line.Figures {
			if f.Median <= 0 {
				return nil
			}
			runs[i] = append(runs[i], f.Median)
		}
	}
	if len(runs[0]) == 0 {
		return nil
	}
	var out []float64
	for _, figures := range runs {
		out = append(out, stats.GeoMean(figures))
	}
	return out
}

// Lacks reports whether a run measured no row of a suite.
func (c *Comparison) Lacks(run, suite string) bool { return !c.measured[[2]string{run, suite}] }

// Worse returns the rows, with their workloads, that a run found worse by more than a share
// of the old figure: 0.05 is 5 %. Any figure is worse than 0 where less is better.
func (c *Comparison) Worse(threshold float64) []string {
	var out []string
	for _, t := range c.Tables {
		for _, line := range t.Lines {
			for i, d := range line.Deltas {
				old, now := line.Figures[0], line.Figures[i+1]
				if d != nil && d.Worse && math.Abs(d.Ratio-1) > threshold ||
					d == nil && now != nil && t.LessIsBetter && now.Median > old.Median {
					out = append(out, line.ID+" "+t.Workload)
					break
				}
			}
		}
	}
	return out
}

// Lost returns the rows, with their workloads, that the old run measured and another did not, or not so that it can be
// judged: a figure fell to 0 where less is better, or the samples are too few for any difference to be found.
func (c *Comparison) Lost() []string {
	added := map[Missing]bool{}
	for _, m := range c.Missing {
		if m.Run == c.Names[0] {
			m.Run, m.Reason = "", ""
			added[m] = true
		}
	}
	var out []string
	for _, m := range c.Missing {
		m.Run, m.Reason = "", ""
		if name := m.ID + " " + m.Workload; !added[m] && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	for _, t := range c.Tables {
		for _, line := range t.Lines {
			for i, d := range line.Deltas {
				now, name := line.Figures[i+1], line.ID+" "+t.Workload
				zero := now != nil && t.LessIsBetter && now.Median == 0 && line.Figures[0].Median > 0
				if (zero || d != nil && d.tooFew()) && !slices.Contains(out, name) {
					out = append(out, name)
				}
			}
		}
	}
	return out
}

// tooFew reports whether no samples of these numbers would have a p-value below [Significance].
func (d *Delta) tooFew() bool {
	return d.Test == MannWhitney && !d.Found && 2/mathx.Choose(d.Old+d.New, d.Old) >= Significance
}
