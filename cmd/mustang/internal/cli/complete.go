// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Words completes arguments to words of a list, each of them once.
func Words(list func() []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var words []cobra.Completion
		for _, word := range list() {
			if strings.HasPrefix(word, begun) && !slices.Contains(args, word) {
				words = append(words, word)
			}
		}
		return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// Word completes the first argument alone.
func Word(list func() []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return Words(list)(cmd, nil, begun)
	}
}

// CompleteFlag completes the values of a flag. It panics if the command has no such flag.
func CompleteFlag(cmd *cobra.Command, flag string, list func() []string) {
	words := Words(list)
	err := cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return words(cmd, nil, begun)
	})
	if err != nil {
		panic(err)
	}
}

// Fixed is a list that does not change.
func Fixed(words ...string) func() []string { return func() []string { return words } }

// Finish gives a command and all below it what they have not set: they take no arguments, and complete the words of flags.
func Finish(cmd *cobra.Command) {
	if cmd.Args == nil && !cmd.DisableFlagParsing {
		cmd.Args = Arguments()
	}
	cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		if value, ok := flag.Value.(*oneOf); ok {
			CompleteFlag(cmd, flag.Name, Fixed(value.words...))
		}
	})
	for _, sub := range cmd.Commands() {
		Finish(sub)
	}
}
