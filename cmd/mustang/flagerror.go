// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/suggest"
)

// wanted are the values that flags take, by the type of the flag.
var wanted = map[string]string{
	"bool": "true or false", "duration": "a duration such as 10ms or 2m",
	"int": "a whole number", "int64": "a whole number", "float64": "a number",
	"uint": "a whole number from 0", "uint8": "a whole number from 0 to 255", "uint16": "a whole number from 0 to 65535",
	"uint32": "a whole number from 0 to 4294967295", "uint64": "a whole number from 0", "uintSlice": "whole numbers from 0",
}

// refuseRepeated returns an error if a flag that takes one value is given twice: the second would replace the first without a word.
// Of the agent's flags the second counts, since the chart's extraFlags follow those that the chart sets.
func refuseRepeated(root *cobra.Command, args []string) (twice error) {
	cmd, rest, err := root.Find(args)
	if err != nil || cmd.DisableFlagParsing || cmd.CommandPath() == "mustang agent" {
		return nil
	}
	cmd.InitDefaultHelpFlag() // and with it those of the commands above
	given := map[string]bool{}
	_ = cmd.Flags().ParseAll(rest, func(flag *pflag.Flag, _ string) error {
		_, list := flag.Value.(pflag.SliceValue)
		if given[flag.Name] && !list && flag.Value.Type() != "stringToString" && flag.Name != "help" {
			twice = cli.Usage(fmt.Errorf("--%s is given twice, and takes one value", flag.Name))
		}
		given[flag.Name] = true
		return twice
	})
	return twice // what else is wrong, the command tells
}

// flagError says of an error of a flag's value what the flag takes, instead of what the parser of numbers has met, and of an
// unknown flag which one may be meant.
func flagError(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		name := "--" + invalid.GetFlag().Name
		if short := invalid.GetFlag().Shorthand; short != "" {
			name = "-" + short + ", " + name
		}
		if want := wanted[invalid.GetFlag().Value.Type()]; want != "" {
			err = fmt.Errorf("%s %q: want %s", name, invalid.GetValue(), want)
		} else {
			err = fmt.Errorf("%s: %w", name, invalid.Unwrap())
		}
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		var known []string
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if !flag.Hidden {
				known = append(known, "--"+flag.Name)
			}
		})
		err = fmt.Errorf("%w%s", err, suggest.Text("--"+unknown.GetSpecifiedName(), known))
	}
	return cli.Usage(err)
}
