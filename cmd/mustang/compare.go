// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/report"
	"mustang/internal/report/render"
	"mustang/internal/result"
)

func (c *config) compare() *cobra.Command {
	var format string
	var limit float64
	var allowMissing bool
	cmd := &cobra.Command{
		Use:   "compare OLD NEW...",
		Short: "Compare the results of runs: before and after a change, or of two machines",
		Long: `Compare each NEW run with the OLD one, row by row. Each is a results.json, the directory of a
run, or the directory that bench made it in, which stands for the latest run.

What differs in machine, versions and settings comes first. A table for each suite and workload has the
figures with the half-width of their 95 % interval. Where a difference was found, the table
has it with its interval and p-value; where none was found, "within N %", the largest difference
that the interval allows, or "not certain". Runs are not interleaved: make several runs of each kind.

With -o benchfmt, the samples of all runs are printed in the format of Go's benchmarks, for
benchstat -col run. With --threshold 5% the exit code is 3 if a row got significantly worse by more than 5 %.
Without --allow-missing, it is also 3 if a NEW run lacks a row of OLD, or its figure.
It is 1 if the intervals of all rows are wider than the threshold.`,
		Example: `  mustang compare mustang-results/20261122T073512Z mustang-results
  mustang compare before/results.json after/results.json again/results.json -o wide
  mustang compare before after --threshold 5%
  mustang compare before after -o markdown
  mustang compare before after -o benchfmt`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return cli.Usage(fmt.Errorf("%s is missing: want %s", []string{"OLD", "NEW"}[len(args)], cmd.UseLine()))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit == 0 && allowMissing {
				return cli.Usage(errors.New("--allow-missing: --threshold is missing"))
			}
			return cli.Interruptible(cmd.Context(), func() error {
				comparison, err := c.compareRuns(args, format)
				if err != nil || limit == 0 {
					return err
				}
				return c.judge(comparison, cmd.Flag("threshold").Value.String(), limit, allowMissing)
			})
		},
	}
	cli.AddOutput(cmd, &format, "csv", "markdown", "benchfmt")
	cmd.Flags().Var(cli.One(&limit, parsePercent, "a percentage, such as 5%"), "threshold",
		"exit with code 3 if a row got worse by more than this, such as 5%, or is missing")
	cmd.Flags().BoolVar(&allowMissing, "allow-missing", false,
		"with --threshold, let rows of OLD be missing, failed or skipped in NEW")
	return cmd
}

func (c *config) compareRuns(results []string, format string) (*report.Comparison, error) {
	runs, err := readRuns(results)
	if err != nil {
		return nil, err
	}
	comparison, err := report.Compare(runs...)
	if err != nil {
		return nil, err
	}
	switch format {
	case "json":
		err = cli.PrintJSON(c.Stdout, struct {
			Schema int `json:"schema"`
			*report.Comparison
		}{cli.Schema, comparison})
	case "csv":
		err = render.ComparisonCSV(c.Stdout, comparison)
	case "markdown":
		err = render.ComparisonMarkdown(c.Stdout, comparison)
	case "benchfmt":
		err = render.Benchfmt(c.Stdout, runs...)
	default:
		err = render.WriteComparison(c.Stdout, comparison, c.textOptions(format))
	}
	if err == nil && len(comparison.Tables) == 0 {
		err = fmt.Errorf("%s lacks a row that another run measured too", results[0])
	}
	return comparison, err
}

// worseError lists the rows that got worse, or are missing.
type worseError struct{ text string }

func (e *worseError) Error() string { return e.text }

// judge returns a *worseError if a row is worse by more than the limit, or is missing unless allowMissing is set.
func (c *config) judge(of *report.Comparison, threshold string, limit float64, allowMissing bool) error {
	var texts []string
	list := func(rows []string) string { return render.Plain(cli.FirstOf(rows, 5)) }
	if worse := of.Worse(limit); len(worse) > 0 {
		texts = append(texts, fmt.Sprintf("worse by more than %s: %s", threshold, list(worse)))
	}
	if lost := of.Lost(); len(lost) > 0 && !allowMissing {
		texts = append(texts, "NEW lacks these rows (--allow-missing allows it): "+list(lost))
	}
	switch rows, all := of.Uncertain(limit); {
	case len(rows) == all && texts == nil:
		return fmt.Errorf("no row can be judged by %s: intervals of %s are wider; repeat both runs with a longer --time",
			threshold, list(rows))
	case len(rows) > 0:
		fmt.Fprintf(c.Stderr, "mustang: row %s: interval wider than the threshold\n", list(rows))
	}
	if texts == nil {
		return nil
	}
	return &worseError{strings.Join(texts, "; ")}
}

func readRuns(paths []string) (runs []report.NamedRun, err error) {
	taken := map[string]bool{}
	for _, path := range paths {
		found, file, err := readResult(path)
		if err != nil {
			return nil, err
		}
		name := runName(found)
		if taken[name] {
			name = path
		}
		for n := 2; taken[name]; n++ {
			name = fmt.Sprintf("%s (%d)", path, n)
		}
		taken[name] = true
		runs = append(runs, report.NamedRun{Name: render.Plain(name), File: file})
	}
	return runs, nil
}

func runName(path string) string {
	if filepath.Base(path) != result.FileName {
		return strings.TrimSuffix(filepath.Base(path), ".json")
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	return filepath.Base(filepath.Dir(path))
}
