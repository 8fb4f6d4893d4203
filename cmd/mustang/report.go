// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/spf13/cobra"

	"mustang/internal/bench"
	"mustang/internal/report"
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
		Args:    arguments(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			if format != "html" && format != "table" {
				return usage(fmt.Errorf("output %q: want html or table", format))
			}
			file, err := result.Read(filepath.Join(args[0], bench.ResultsName))
			if err != nil {
				return err
			}
			if format == "table" {
				return report.Table(c.stdout, file, c.tableOptions())
			}
			var page bytes.Buffer
			if err := report.HTML(&page, file); err != nil {
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

func (c *config) version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  arguments(cobra.NoArgs),
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
