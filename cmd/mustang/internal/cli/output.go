// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"

	"mustang/internal/suggest"
)

// Schema is the version of the JSON that commands print.
const Schema = 1

// formats are the words that -o of each command takes: wide is a table with more, where there is more.
var formats = []string{"table", "wide", "json"}

// AddOutput adds the flag -o to a command that reads. It takes table, wide, json, and the words more.
func AddOutput(cmd *cobra.Command, format *string, more ...string) {
	words := append(slices.Clone(formats), more...)
	cmd.Flags().StringVarP(format, "output", "o", "table", "output format: "+alternatives(words))
	CompleteFlag(cmd, "output", Fixed(words...))
}

// CheckOutput refuses an unknown format before anything is done.
func CheckOutput(format string, more ...string) error {
	if words := append(slices.Clone(formats), more...); !slices.Contains(words, format) {
		return Usage(fmt.Errorf("output %q: want %s%s", format, alternatives(words), suggest.Text(format, words)))
	}
	return nil
}

// alternatives lists words: "a, b or c".
func alternatives(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// Printable makes a text that others chose safe to print on a terminal.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// PrintJSON writes a value as indented JSON.
func PrintJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// PrintTable writes rows below a header, in columns.
func PrintTable(w io.Writer, header []string, rows [][]string) error {
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tab, strings.Join(header, "\t"))
	for _, row := range rows {
		fmt.Fprintln(tab, strings.Join(row, "\t"))
	}
	return tab.Flush()
}
