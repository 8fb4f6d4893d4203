// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"mustang/internal/suggest"
)

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
