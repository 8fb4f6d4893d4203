// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// schema is the version of the JSON that commands print.
const schema = 1

// addOutput adds the flag -o to a command that reads.
func addOutput(cmd *cobra.Command, format *string) {
	cmd.Flags().StringVarP(format, "output", "o", "table", "output format: table or json")
}

// checkOutput refuses an unknown format before anything is done.
func checkOutput(format string) error {
	if format != "table" && format != "json" {
		return usage(fmt.Errorf("output %q: want table or json", format))
	}
	return nil
}

// printJSON writes a value as indented JSON.
func printJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// printTable writes rows below a header, in columns.
func printTable(w io.Writer, header []string, rows [][]string) error {
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tab, strings.Join(header, "\t"))
	for _, row := range rows {
		fmt.Fprintln(tab, strings.Join(row, "\t"))
	}
	return tab.Flush()
}
