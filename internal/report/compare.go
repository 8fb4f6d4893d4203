// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"reflect"
	"slices"

	"github.com/aclements/go-moremath/mathx"
	"github.com/aclements/go-moremath/stats"

	"mustang/internal/result"
)

// significance is the corrected p-value below which a difference counts as found.
const significance = 0.05

// NamedRun is a result file with a unique name; empty if it is the only file.
type NamedRun struct {
	Name string
	File result.File
}

// Comparison compares runs that were made one after the other with the first of them. Its differences include all
// other changes between the runs; Differs names the changes recorded in the files. Strings are free of control
// characters.
type Comparison struct {
	// Names are the names of the runs, the old one first.
	Names []string `json:"runs"`
	// Warnings has the runs that are quick, interrupted, disturbed or noisy.
	Warnings []runWarning `json:"warnings"`
	// Differs names the properties of machine, settings and method that differ.
	Differs []property `json:"differs"`
	// Tables has one for each suite and workload, in the order of the old file.
	Tables []comparedTable `json:"tables"`
	// Missing are the rows that some of the runs measured, and others did not.
	Missing []missing `json:"missing"`

	measured map[[2]string]bool // by run and suite
	lost     []string           // rows that only the old run measured
}

// comparedTable compares the rows of a suite under a workload.
type comparedTable struct {
	result.Key                  // without ID
	Unit         string         `json:"unit"`
	LessIsBetter bool           `json:"less_is_better"`
	Lines        []comparedLine `json:"lines"`
	// Geomean has the geometric mean of each run's figures over the rows that all runs measured; empty without such
	// rows, or if a figure is 0.
	Geomean []float64 `json:"geomean"`
	// GeomeanCI95 has for each run but the first an interval of the ratio of the means. It is as wide as the geometric
	// mean of the rows' intervals, which holds for any dependence between rows. nil if a row lacks an interval.
	GeomeanCI95 []*[2]float64 `json:"geomean_ci95"`
}

// comparedLine compares a row.
type comparedLine struct {
	ID string `json:"id"`
	// Figures has one for each run; nil if the run did not measure the row.
	Figures []*comparedFigure `json:"figures"`
	// Deltas compares each run but the first with the first; nil where it can't.
	Deltas []*delta `json:"deltas"`
}

// comparedFigure is a row's figure as its file has it.
type comparedFigure struct {
	Median  float64     `json:"median"`
	CI95    *[2]float64 `json:"ci95"`
	Samples int         `json:"samples"`
}

// delta is the difference of a row between two runs.
type delta struct {
	// Ratio is new divided by old, with its 95 % interval; nil if there are too few labs
	// or samples for one.
	Ratio float64     `json:"ratio"`
	CI95  *[2]float64 `json:"ci95"`
	// P is the p-value corrected for the number of differences in the table.
	P float64 `json:"p"`
	// Test is the test, Over the unit of its values, and Old and New their numbers.
	Test string `json:"test"`
	Over string `json:"over"`
	Old  int    `json:"old_units"`
	New  int    `json:"new_units"`
	// Found is true if P is below [significance], or if only the new figure is 0.
	Found bool `json:"found"`
	// Worse is true if a difference was found, in the direction that is worse.
	Worse bool `json:"worse"`
}

// missing is a row that a run did not measure.
type missing struct {
	result.Key
	// Run is the name of the run that did not measure it, and Reason its reason; empty if
	// the row is not in the file.
	Run    string `json:"run"`
	Reason string `json:"reason,omitempty"`
}

// Compare compares runs with the first. It refuses to compare times with counted
// instructions.
func Compare(runs ...NamedRun) (*Comparison, error) {
	runs = cleaned(reflect.ValueOf(runs)).Interface().([]NamedRun)
	c := &Comparison{
		Warnings: runWarnings(runs), Differs: differences(runs), Tables: []comparedTable{}, Missing: []missing{},
		measured: map[[2]string]bool{},
	}
	rows := make([]map[result.Key]result.Row, len(runs))
	var keys []result.Key
	known := map[result.Key]bool{}
	for i, run := range runs {
		if run.File.Run.Counted() != runs[0].File.Run.Counted() {
			return nil, fmt.Errorf("%s and %s can't be compared: %s, %s", runs[0].Name, run.Name, clockOf(runs[0]), clockOf(run))
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
		of := make([]result.Row, len(runs)) // empty where the row is not in the file
		for i := range runs {
			of[i] = rows[i][key]
		}
		line, err := c.line(key, of)
		if err != nil {
			return nil, err
		}
		others := filter(line.Figures[1:], func(f *comparedFigure) bool { return f != nil })
		if line.Figures[0] == nil || len(others) == 0 {
			continue
		}
		key.ID = ""
		i, ok := index[key]
		if !ok {
			i = len(c.Tables)
			index[key] = i
			c.Tables = append(c.Tables, comparedTable{Key: key, Unit: of[0].Unit, LessIsBetter: !of[0].MoreIsBetter()})
		}
		c.Tables[i].Lines = append(c.Tables[i].Lines, line)
	}
	for i := range c.Tables {
		c.Tables[i].judge()
	}
	return c, nil
}

// line compares a row, and notes the runs that did not measure it.
func (c *Comparison) line(key result.Key, rows []result.Row) (line comparedLine, err error) {
	line.ID = key.ID
	old := rows[0]
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

// judge corrects the p-values of a table, decides on its differences, and takes the means.
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
	var means []float64
	for i := range all[0].Figures {
		var figures []float64
		for _, line := range all {
			figures = append(figures, line.Figures[i].Median)
		}
		if slices.Min(figures) <= 0 {
			return
		}
		means = append(means, stats.GeoMean(figures))
	}
	t.Geomean = means
	for i := range means[1:] {
		t.GeomeanCI95 = append(t.GeomeanCI95, meanInterval(all, i, means[i+1]/means[0]))
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

// rows returns the rows, with their workloads, where a new run meets a condition.
func (c *Comparison) rows(is func(t comparedTable, old, now *comparedFigure, d *delta) bool) (out []string) {
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
	return c.rows(func(t comparedTable, old, now *comparedFigure, d *delta) bool {
		if d == nil {
			return now != nil && t.LessIsBetter && now.Median > old.Median
		}
		return d.Worse && math.Abs(d.Ratio-1) > threshold
	})
}

// Lost returns the rows, with their workloads, that the old run measured and another did not, or measured without a
// verdict. The verdict is missing if a figure fell to 0 where less is better, or if the samples are too few to find
// a difference.
func (c *Comparison) Lost() (out []string) {
	unjudged := c.rows(func(t comparedTable, old, now *comparedFigure, d *delta) bool {
		zero := now != nil && t.LessIsBetter && now.Median == 0 && old.Median > 0
		return zero || d != nil && d.Test == mannWhitney && !d.Found && 2/mathx.Choose(d.Old+d.New, d.Old) >= significance
	})
	for _, name := range append(slices.Clone(c.lost), unjudged...) {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// Uncertain returns the rows without a difference whose intervals allow one of more than a share, and the number of
// all rows.
func (c *Comparison) Uncertain(threshold float64) (rows []string, all int) {
	for _, t := range c.Tables {
		all += len(t.Lines)
	}
	return c.rows(func(_ comparedTable, _, _ *comparedFigure, d *delta) bool {
		return d != nil && !d.Found && (d.CI95 == nil || (d.CI95[1]-d.CI95[0])/2 > threshold)
	}), all
}
