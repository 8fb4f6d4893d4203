// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// Schema is the version of the JSON that commands print.
const Schema = 1

// AddOutput adds the flag -o to a command that reads.
func AddOutput(cmd *cobra.Command, format *string) {
	cmd.Flags().StringVarP(format, "output", "o", "table", "output format: table or json")
}

// CheckOutput refuses an unknown format before anything is done.
func CheckOutput(format string) error {
	if format != "table" && format != "json" {
		return Usage(fmt.Errorf("output %q: want table or json", format))
	}
	return nil
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
