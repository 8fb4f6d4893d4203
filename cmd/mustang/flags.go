// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/lab"
	"mustang/internal/suggest"
)

const exitDone, exitFailed, exitMisuse, exitWorse = 0, 1, 2, 3

const envStateDir = "MUSTANG_STATE_DIR"

type config struct {
	*cli.Config
	stateDir string
	reapErr  error // why the labs of dead processes could not be cleared
	inPod    bool  // see [lab.Store]
}

func (c *config) store() lab.Store { return lab.Store{Dir: c.stateDir, InPod: c.inPod} }

var wanted = map[string]string{
	"bool": "true or false", "duration": "a duration such as 10ms or 2m",
	"int": "a whole number", "int64": "a whole number", "float64": "a number",
	"uint": "a whole number from 0", "uint8": "a whole number from 0 to 255", "uint16": "a whole number from 0 to 65535",
	"uint32": "a whole number from 0 to 4294967295", "uint64": "a whole number from 0",
	"uintSlice": "whole numbers from 0",
}

// refuseRepeated returns an error if a flag that takes one value is given twice. The agent's flags may repeat: the
// chart's extraFlags override its own flags.
func refuseRepeated(root *cobra.Command, args []string) (twice error) {
	cmd, rest, err := root.Find(args)
	if err != nil || cmd.DisableFlagParsing || cmd.CommandPath() == "mustang agent" {
		return nil
	}
	cmd.InitDefaultHelpFlag() // also adds the flags of the parent commands
	given := map[string]bool{}
	_ = cmd.Flags().ParseAll(rest, func(flag *pflag.Flag, _ string) error {
		_, list := flag.Value.(pflag.SliceValue)
		if parsed, ok := flag.Value.(*cli.Parsed); ok {
			list = parsed.Repeated
		}
		if given[flag.Name] && !list && flag.Value.Type() != "stringToString" && flag.Name != "help" {
			twice = cli.Usage(fmt.Errorf("--%s is given twice, and takes one value", flag.Name))
		}
		given[flag.Name] = true
		return twice
	})
	return twice // the command reports other errors
}

func flagName(f *pflag.Flag) string {
	if f.Shorthand != "" {
		return "-" + f.Shorthand + ", --" + f.Name
	}
	return "--" + f.Name
}

// flagError names what a flag takes, instead of the parser's error. For an unknown flag it suggests a known one.
func flagError(cmd *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		name := flagName(invalid.GetFlag())
		want := wanted[invalid.GetFlag().Value.Type()]
		if parsed, ok := invalid.GetFlag().Value.(*cli.Parsed); ok {
			want = parsed.Want
		}
		switch what := invalid.Unwrap(); {
		case want != "":
			err = fmt.Errorf("%s %q: want %s", name, invalid.GetValue(), want)
		case strings.Contains(what.Error(), strconv.Quote(invalid.GetValue())):
			err = fmt.Errorf("%s: %w", name, what)
		default:
			err = fmt.Errorf("%s %q: %w", name, invalid.GetValue(), what)
		}
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && unknown.GetSpecifiedShortnames() == "" {
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
