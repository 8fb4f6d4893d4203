// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"mustang/internal/bench"
	"mustang/internal/report"
	"mustang/internal/report/html"
	"mustang/internal/report/text"
	"mustang/internal/result"
)

// reportName is the name of the page that report writes.
const reportName = "report.html"

func (c *config) report() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "report DIR",
		Short: "Write a page with tables and charts from a run's results",
		Long: `Write DIR/report.html from DIR/results.json: one page that needs no network, with the
tables, charts with their 95 % intervals, the machine and its settings, and the evidence.
With -o table, print the tables again instead.`,
		Example: "  mustang report mustang-results\n  mustang report mustang-results -o table",
		Args:    arguments("DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			if format != "html" && format != "table" {
				return usage(fmt.Errorf("output %q: want html or table", format))
			}
			file, err := result.Read(filepath.Join(args[0], bench.ResultsName))
			if err != nil {
				return err
			}
			if format == "table" {
				return c.printReport(file)
			}
			r, err := report.New(file)
			if err != nil {
				return err
			}
			var page bytes.Buffer
			if err := html.Write(&page, r); err != nil {
				return err
			}
			path := filepath.Join(args[0], reportName)
			if err := os.WriteFile(path, page.Bytes(), 0o600); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.stdout, path)
			return err
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "html", "output format: html or table")
	return cmd
}

// printReport prints the tables of a result file, as wide as the terminal; what goes
// elsewhere has all columns.
func (c *config) printReport(file result.File) error {
	r, err := report.New(file)
	if err != nil {
		return err
	}
	var o text.Options
	if out, ok := c.stdout.(*os.File); ok && term.IsTerminal(int(out.Fd())) {
		o.Color = c.getenv("NO_COLOR") == ""
		if width, _, err := term.GetSize(int(out.Fd())); err == nil {
			o.Width = width
		}
	}
	return text.Write(c.stdout, r, o)
}

func (c *config) version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  arguments(),
		RunE: func(*cobra.Command, []string) error {
			version := "unknown"
			if info, ok := debug.ReadBuildInfo(); ok {
				version = info.Main.Version + " " + info.GoVersion
			}
			_, err := fmt.Fprintln(c.stdout, "mustang", version)
			return err
		},
	}
}
