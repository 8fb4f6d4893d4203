// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"mustang/internal/nl"
)

// details are the lines below a link, each a list that may be broken.
func (t *linksTree) details(l nl.Link) [][]string {
	var identity []string
	for _, a := range l.Addrs {
		identity = append(identity, a.String())
	}
	if len(l.MAC) > 0 {
		identity = append(identity, "mac "+l.MAC.String())
	}
	var programs []string
	for _, p := range t.inventory.programs[l.Index] {
		programs = append(programs, programText(p))
	}
	settings := settingsText(l.Settings)
	for i, port := range settingsText(l.Port) {
		if i == 0 {
			port = "port " + port
		}
		settings = append(settings, port)
	}
	out := [][]string{identity, settings, {offloadsText(l), queuesText(l)}, programs}
	if l.Alias != "" {
		out = append(out, []string{"alias " + strconv.Quote(l.Alias)})
	}
	return out
}

// print writes the lines with their columns aligned.
func (t *linksTree) print(w io.Writer) error {
	header := treeLine{columns: []string{"INTERFACE", "KIND", "STATE", "MTU", "SPEED", "JOINED TO"}}
	lines := append([]treeLine{header}, t.lines...)
	widths := make([]int, len(header.columns))
	for _, line := range lines {
		for i, cell := range line.columns {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var out strings.Builder
	fmt.Fprintf(&out, "network namespace %s (inode %d)\n", t.inventory.place, t.inventory.place.Inode)
	for _, line := range lines {
		text := line.text
		for i, cell := range line.columns {
			text += cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2)
		}
		fmt.Fprintln(&out, strings.TrimRight(text, " "))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// wrap joins items by commas, in lines of at most that width where that can be
// done.
func wrap(items []string, width int) []string {
	var lines []string
	for i, item := range items {
		if i < len(items)-1 {
			item += ","
		}
		last := len(lines) - 1
		if last >= 0 && len(lines[last])+1+len(item) <= width {
			lines[last] += " " + item
			continue
		}
		lines = append(lines, item)
	}
	return lines
}
