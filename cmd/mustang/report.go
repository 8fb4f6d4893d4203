// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/report"
	"mustang/internal/report/html"
	"mustang/internal/report/render"
	"mustang/internal/result"
)

func (c *config) report() *cobra.Command {
	var format string
	var share bool
	cmd := &cobra.Command{
		Use:   "report RESULTS",
		Short: "Write a page with tables and charts from a run's results",
		Long: `Write report.html beside a run's results.json: one page that needs no network, with the
tables, charts with their 95 % intervals, the machine and its settings, and the evidence.
RESULTS is the file, the directory of the run, or the directory that bench made it in,
which stands for the latest run.

Print the answer too, or with -o wide all tables before it. With -o html print only the
name of the page. With -o csv or -o markdown print the figures of each row instead; with
-o json the result file, and with -o benchfmt each sample in the format of Go's benchmarks, for benchstat.

With --share write the answer as a picture, share.svg and share.png, and as Markdown, share.md.`,
		Example: `  mustang report mustang-results
  mustang report mustang-results/20261122T073512Z -o wide
  mustang report mustang-results/latest/results.json -o html
  mustang report mustang-results --share
  mustang report mustang-results -o csv
  mustang report mustang-results -o benchfmt`,
		Args: cli.Arguments("RESULTS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if share && cmd.Flags().Changed("output") {
				return cli.Usage(errors.New("--share: it takes no -o"))
			}
			return cli.Interruptible(cmd.Context(), func() error { return c.reportOn(args[0], format, share) })
		},
	}
	cmd.Flags().BoolVar(&share, "share", false, "write the answer as a picture and as Markdown, and print their names")
	cli.AddOutput(cmd, &format, "html", "csv", "markdown", "benchfmt")
	return cmd
}

func readResult(path string) (found string, file result.File, err error) {
	if found, err = result.FindFile(path); err == nil {
		file, err = result.Read(found)
	}
	return found, file, err
}

func (c *config) reportOn(results, format string, share bool) error {
	path, file, err := readResult(results)
	if err != nil {
		return err
	}
	switch format {
	case "json":
		return c.printResults(file)
	case "csv":
		return render.CSV(c.Stdout, file)
	case "markdown":
		return render.Markdown(c.Stdout, file)
	case "benchfmt":
		return render.Benchfmt(c.Stdout, report.NamedRun{File: file})
	}
	r, err := report.New(file)
	if err != nil {
		return err
	}
	if share {
		return c.share(path, r)
	}
	err = c.writePage(path, r)
	if format != "html" { // the answer needs no page
		return errors.Join(c.printReport(r, path, format), err)
	}
	if err == nil {
		_, err = fmt.Fprintln(c.Stdout, pageOf(path))
	}
	return err
}

func (c *config) printResults(file result.File) error {
	data, err := result.Marshal(file)
	if err == nil {
		_, err = c.Stdout.Write(data)
	}
	return err
}

func pageOf(results string) string { return filepath.Join(filepath.Dir(results), result.PageName) }

func (c *config) writePage(results string, r *report.Report) error {
	var page bytes.Buffer
	if err := html.Write(&page, r); err != nil {
		return err
	}
	return result.SudoUser(c.Getenv).WriteFile(pageOf(results), page.Bytes())
}

// share writes the answer as files beside the results.
func (c *config) share(results string, r *report.Report) error {
	shared, err := render.Share(r)
	if err != nil {
		return err
	}
	for _, file := range []struct {
		name  string
		write func(io.Writer) error
	}{{"share.svg", shared.SVG}, {"share.png", shared.PNG}, {"share.md", shared.Markdown}} {
		var content bytes.Buffer
		path := filepath.Join(filepath.Dir(results), file.name)
		err := errors.Join(file.write(&content), result.SudoUser(c.Getenv).WriteFile(path, content.Bytes()))
		if err == nil {
			err = c.Printf("%s\n", path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// printReport prints the answer of a report whose results are in a file, in format wide after all tables.
func (c *config) printReport(r *report.Report, results, format string) error {
	o := c.textOptions(format)
	if o.Wide {
		if err := render.Text(c.Stdout, r, o); err != nil {
			return err
		}
		fmt.Fprintln(c.Stdout)
	}
	files := fmt.Sprintf("Results: %s; page: %s; all tables: -o wide", results, pageOf(results))
	return render.Answer(c.Stdout, r, files, o)
}

// colored reports whether a terminal is to show colors: see https://no-color.org, and terminfo(5) of a dumb one.
func colored(getenv func(string) string) bool {
	return getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

// textOptions returns the width and colors of the terminal. Output to a file or pipe has all columns.
func (c *config) textOptions(format string) (o render.Options) {
	o.Wide = format == "wide"
	if out, ok := c.Stdout.(*os.File); ok && term.IsTerminal(int(out.Fd())) {
		o.Color = colored(c.Getenv)
		if width, _, err := term.GetSize(int(out.Fd())); err == nil {
			o.Width = width
		}
	}
	return o
}
