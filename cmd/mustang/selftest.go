// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/bench"
)

// notInSelfTest are the flags that make no sense in a self-test.
const notInSelfTest = "only all engine peer vm count wire-rate wire-delay quick workload flows request-size " +
	"response-size direction latency-under-load rate"

func checkSelfTest(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("--self-test has suites of its own, not %q", args[0])
	}
	for _, name := range strings.Fields(notInSelfTest) {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--self-test and --%s exclude each other", name)
		}
	}
	return nil
}

// runSelfTest measures known differences, and prints whether the measurement found them.
func (c *config) runSelfTest(cmd *cobra.Command, o bench.Options, flags benchFlags) error {
	file, path, err := c.measure(cmd, o, flags.out, flags.name)
	if err != nil {
		return err
	}
	checks := bench.JudgeSelftest(file)
	err = cli.PrintList(c.Stdout, flags.format, checks, cli.Table[bench.SelftestCheck]{
		Key:    "checks",
		Header: []string{"CHECK", "WANT", "FOUND", "STATUS"},
		Row:    func(c bench.SelftestCheck) []any { return []any{c.Name, c.Want, c.Found, c.Status} },
	})
	if err == nil && flags.format != "json" {
		_, err = fmt.Fprintln(c.Stdout, "Results:", path)
	}
	for _, check := range checks {
		if check.Status == bench.Failed {
			err = errors.Join(err, fmt.Errorf("self-test: %s: want %s, found %s", check.Name, check.Want, check.Found))
		}
	}
	return err
}
