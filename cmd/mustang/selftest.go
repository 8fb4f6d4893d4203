// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/bench"
)

// checkSelfTest returns an error if an argument or a flag makes no sense in a self-test.
func checkSelfTest(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("--self-test has suites of its own, not %q", args[0])
	}
	for _, name := range []string{
		"only", "all", "engine", "peer", "vm", "count", "wire-rate", "wire-delay", "quick", "workload", "flows",
		"request-size", "response-size",
		"direction", "latency-under-load", "rate",
	} {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--self-test and --%s exclude each other", name)
		}
	}
	return nil
}

// checkJSON is a check of the self-test.
type checkJSON struct {
	Name   string `json:"check"`
	Want   string `json:"want"`
	Found  string `json:"found"`
	Status string `json:"status"`
}

// runSelfTest measures known differences, and prints whether the measurement found them.
func (c *config) runSelfTest(cmd *cobra.Command, o bench.Options, out, format string) error {
	file, results, err := c.measure(cmd, o, out)
	if err != nil {
		return err
	}
	var list []checkJSON
	var failed []error
	for _, check := range bench.JudgeSelftest(file) {
		list = append(list, checkJSON(check))
		if check.Status == bench.Failed {
			failed = append(failed, fmt.Errorf("self-test: %s: want %s, found %s", check.Name, check.Want, check.Found))
		}
	}
	err = cli.PrintList(c.Stdout, format, list, cli.Table[checkJSON]{
		Key:    "checks",
		Header: []string{"CHECK", "WANT", "FOUND", "STATUS"},
		Row:    func(c checkJSON) []any { return []any{c.Name, c.Want, c.Found, c.Status} },
	})
	if err == nil && format != "json" {
		_, err = fmt.Fprintln(c.Stdout, "Results:", results)
	}
	return errors.Join(append(failed, err)...)
}
