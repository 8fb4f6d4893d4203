// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/internal/netns"
	"mustang/internal/suggest"
)

// UsageError is an invalid command line.
type UsageError struct{ error }

// Unwrap returns the reason.
func (u *UsageError) Unwrap() error { return u.error }

// Usage returns an error as a UsageError, and nil as nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &UsageError{err}
}

// Arguments accepts arguments with these names. A name in brackets is optional.
func Arguments(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch n := len(args); {
		case n > len(names):
			return Usage(fmt.Errorf("unexpected argument %q: want %s", args[len(names)], cmd.UseLine()))
		case n < len(names) && !strings.HasPrefix(names[n], "["):
			return Usage(fmt.Errorf("%s is missing: want %s", names[n], cmd.UseLine()))
		}
		return nil
	}
}

// Group returns a command that prints help, with an example of its first command. An unknown word is a usage error.
func Group(use, short string, commands ...*cobra.Command) *cobra.Command {
	example, _, _ := strings.Cut(commands[0].Example, "\n")
	cmd := &cobra.Command{
		Use: use, Short: short, Example: example,
		Args: KnownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(commands...)
	return cmd
}

// KnownCommand refuses a word that does not name a command, and lists the commands.
func KnownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names, others []string
	for _, known := range cmd.Commands() {
		if known.IsAvailableCommand() {
			names, others = append(names, known.Name()), append(others, known.Aliases...)
		}
	}
	hint := cmp.Or(suggest.Text(args[0], slices.Concat(names, others)), ": want "+strings.Join(names, ", "))
	return Usage(fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(), hint))
}

// Check returns the first step of a command: it refuses invalid arguments and flags.
func Check(check func(args []string) error) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error { return Usage(check(args)) }
}

// AsRoot returns the run function of a command that needs root.
func AsRoot(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := RequireRoot(cmd); err != nil {
			return err
		}
		return run(cmd.Context(), args)
	}
}

// RequireRoot refuses users who lack the rights for network namespaces.
func RequireRoot(cmd *cobra.Command) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s needs root", cmd.CommandPath())
	}
	return nil
}

// OpenNamespace opens a network namespace by its path, or by its name in netns.Directory; empty: the current one.
func OpenNamespace(name string) (*netns.Namespace, error) {
	if name == "" {
		return netns.Current()
	}
	if !strings.Contains(name, "/") {
		name = filepath.Join(netns.Directory, name)
	}
	return netns.Open(name)
}

// WithNamespace calls a function with the namespace that OpenNamespace opens.
func WithNamespace(name string, do func(*netns.Namespace) error) error {
	ns, err := OpenNamespace(name)
	if err != nil {
		return err
	}
	defer ns.Close()
	return do(ns)
}

// Words completes arguments to words of a list, each word once.
func Words(list func() []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		words := slices.DeleteFunc(slices.Clone(list()), func(word string) bool {
			return !strings.HasPrefix(word, begun) || slices.Contains(args, word)
		})
		return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// Word completes only the first argument.
func Word(list func() []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return Words(list)(cmd, nil, begun)
	}
}

// CompleteFlag completes the values of a flag. It panics if the command lacks the flag.
func CompleteFlag(cmd *cobra.Command, flag string, list func() []string) {
	complete := func(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return Words(list)(cmd, nil, begun)
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err)
	}
}

// Fixed is a list that does not change.
func Fixed(words ...string) func() []string { return func() []string { return words } }

// aliases are other names of commands.
var aliases = map[string][]string{
	"delete": {"rm"}, "rm": {"delete"}, "down": {"rm", "delete"}, "up": {"create"}, "ls": {"list"},
	"lab": {"labs"}, "policy": {"policies"},
	"ep": {"endpoint", "endpoints"}, "svc": {"service", "services"},
}

// Finish completes the settings of a command and all below it: by default they take no arguments, and complete the
// words of flags.
func (c *Config) Finish(cmd *cobra.Command) {
	cmd.Aliases = aliases[cmd.Name()]
	c.addYAML(cmd)
	if cmd.Args == nil && !cmd.DisableFlagParsing {
		cmd.Args = Arguments()
	}
	cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		if value, ok := flag.Value.(*Parsed); ok && value.words != nil {
			CompleteFlag(cmd, flag.Name, Fixed(value.words...))
		}
	})
	for _, sub := range cmd.Commands() {
		c.Finish(sub)
	}
}

// Parsed is the value of a flag that a function parses.
type Parsed struct {
	Want     string // the texts that the flag takes, for errors; empty: the parser's own error is shown
	Repeated bool   // the flag may be repeated
	text     string
	words    []string // the only ones that the flag takes, for completion
	set      func(text string) error
}

// One is a flag whose value is parsed by parse.
func One[T any](to *T, parse func(string) (T, error), want string) *Parsed {
	return &Parsed{Want: want, set: func(text string) (err error) {
		*to, err = parse(text)
		return err
	}}
}

// Each is like One, for a flag that may be repeated.
func Each[T any](all *[]T, parse func(string) (T, error), want string) *Parsed {
	return &Parsed{Want: want, Repeated: true, set: func(text string) error {
		one, err := parse(text)
		*all = append(*all, one)
		return err
	}}
}

// List is like Each, and takes several values separated by commas.
func List[T any](all *[]T, parse func(string) (T, error), want string) *Parsed {
	list := Each(all, parse, want)
	one := list.set
	list.set = func(text string) (err error) {
		for part := range strings.SplitSeq(text, ",") {
			err = cmp.Or(err, one(part))
		}
		return err
	}
	return list
}

// String implements pflag.Value.
func (p *Parsed) String() string { return p.text }

// Type implements pflag.Value.
func (p *Parsed) Type() string {
	if p.Repeated {
		return "strings"
	}
	return "string"
}

// Set implements pflag.Value.
func (p *Parsed) Set(text string) error {
	p.text = text
	return p.set(text)
}

func alternatives(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// OneOf is the value of a flag that takes one of some words, by default the first.
func OneOf(to *string, words ...string) *Parsed {
	*to = words[0]
	return &Parsed{text: *to, words: words, set: func(text string) error {
		if !slices.Contains(words, text) {
			return fmt.Errorf("%q: want %s%s", text, alternatives(words), suggest.Text(text, words))
		}
		*to = text
		return nil
	}}
}
