// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"

	"mustang/internal/datapath"
)

// Schema is the version of the JSON that commands print.
const Schema = 1

// AddOutput adds the flag -o to a command that reads. Its values are table, wide (a table with more columns), json,
// yaml (Finish makes it of json), and the words in more.
func AddOutput(cmd *cobra.Command, format *string, more ...string) {
	AddFormats(cmd, format, append([]string{"table", "wide", "json", "yaml"}, more...)...)
}

// AddFormats adds the flag -o with other words. The first is the default.
func AddFormats(cmd *cobra.Command, format *string, words ...string) {
	cmd.Flags().VarP(OneOf(format, words...), "output", "o", "output format: "+alternatives(words))
}

// FirstOf lists the first of some words, and counts the others.
func FirstOf(words []string, most int) string {
	if len(words) <= most {
		return strings.Join(words, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(words[:most], ", "), len(words)-most)
}

// Labels returns labels as KEY=VALUE, sorted, with commas.
func Labels(all map[string]string) string {
	keys := slices.Sorted(maps.Keys(all))
	return strings.Join(Convert(keys, func(key string) string { return key + "=" + all[key] }), ",")
}

// Convert returns what a function makes of each item of a list.
func Convert[T, U any](list []T, to func(T) U) (out []U) {
	for _, item := range list {
		out = append(out, to(item))
	}
	return out
}

// Printable makes a foreign text safe for a terminal.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// PrintableLines returns a writer that writes each character of a line that is not printable as a question mark: others
// than the user chose these texts.
func PrintableLines(w io.Writer) io.Writer { return printableLines{w} }

type printableLines struct{ to io.Writer }

func (p printableLines) Write(text []byte) (int, error) {
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		lines[i] = Printable(line)
	}
	_, err := io.WriteString(p.to, strings.Join(lines, "\n"))
	return len(text), err
}

// PrintJSON writes a value as indented JSON.
func PrintJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// Listing makes cmd a listing command with -o that runs as root. It calls show with the format.
func Listing(cmd *cobra.Command, show func(format string) error) *cobra.Command {
	var format string
	cmd.RunE = AsRoot(func(context.Context, []string) error { return show(format) })
	AddOutput(cmd, &format)
	return cmd
}

// ListCommand makes cmd a command that lists the result of read on the node's datapath.
func ListCommand[T any](c *Config, cmd *cobra.Command, table Table[T],
	read func(context.Context, *datapath.Datapath) ([]T, error)) *cobra.Command {
	return Listing(cmd, func(format string) error {
		list, err := Read(c, func(d *datapath.Datapath) ([]T, error) { return read(cmd.Context(), d) })
		if err != nil {
			return err
		}
		return PrintList(c.Stdout, format, list, table)
	})
}

// Table describes the table of a list.
type Table[T any] struct {
	Key    string // of the list in JSON
	Header []string
	Wide   []string // columns of Header that only -o wide shows
	Row    func(T) []any
}

// PrintList writes a list as JSON, or as a table with a row for each item.
func PrintList[T any](w io.Writer, format string, list []T, table Table[T]) error {
	if format == "json" {
		text, err := json.MarshalIndent(append([]T{}, list...), "  ", "  ")
		if err == nil {
			_, err = fmt.Fprintf(w, "{\n  \"schema\": %d,\n  %q: %s\n}\n", Schema, table.Key, text)
		}
		return err
	}
	var columns []int
	var header []string
	for i, title := range table.Header {
		if format == "wide" || !slices.Contains(table.Wide, title) {
			columns, header = append(columns, i), append(header, title)
		}
	}
	rows := make([][]any, len(list))
	for i, item := range list {
		cells := table.Row(item)
		for _, column := range columns {
			rows[i] = append(rows[i], cells[column])
		}
	}
	return PrintTable(w, header, rows)
}

// PrintTable writes rows below a header, in columns. A slice is printed with commas, and an empty cell as "-".
func PrintTable(w io.Writer, header []string, rows [][]any) error {
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tab, strings.Join(header, "\t"))
	for _, row := range rows {
		var cells []string
		for _, value := range row {
			text := fmt.Sprint(value)
			if reflect.TypeOf(value).Kind() == reflect.Slice {
				text = strings.ReplaceAll(text[1:len(text)-1], " ", ",")
			}
			cells = append(cells, cmp.Or(text, "-"))
		}
		fmt.Fprintln(tab, strings.Join(cells, "\t"))
	}
	return tab.Flush()
}
