// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/bench"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/result"
)

// rowJSON is a row of bench --list -o json, for one workload.
type rowJSON struct {
	Suite    string       `json:"suite"`
	ID       string       `json:"id"`
	Workload string       `json:"workload"`
	Flows    int          `json:"flows"`
	Setup    result.Setup `json:"setup,omitzero"`
	Link     string       `json:"link"`
	Datapath string       `json:"datapath"`
	Target   string       `json:"target"`
	Via      string       `json:"via"`
	Proxy    string       `json:"proxy,omitempty"`
	Status   string       `json:"status"`
	Reason   string       `json:"reason,omitempty"`
}

// statusUnknown is the status of a row in a list whose link mode was not tried.
const statusUnknown = "?"

// rowKey is the suite and the ID of a row.
type rowKey struct{ suite, id string }

// listRows lists the rows of suites, and whether the programs that they need are
// installed. As root it also tries whether the kernel has their link modes.
func (c *config) listRows(o bench.Options, format string) error {
	selected, err := o.Rows()
	if err != nil {
		return cli.Usage(err)
	}
	rows := listedRows(o, selected)
	if format == "json" {
		return cli.PrintJSON(c.Stdout, struct {
			Schema int       `json:"schema"`
			Rows   []rowJSON `json:"rows"`
		}{cli.Schema, rows})
	}
	header := []string{"SUITE", "ROW", "LINK", "DATAPATH", "TARGET", "VIA", "PROXY", "WORKLOADS", "STATUS"}
	const workloads = 7
	var lines [][]string
	at := map[rowKey]int{}
	for _, r := range rows {
		workload := suites.Workload{Name: r.Workload, Flows: r.Flows, Setup: r.Setup}.String()
		if i, ok := at[rowKey{r.Suite, r.ID}]; ok {
			lines[i][workloads] += "," + workload
			continue
		}
		at[rowKey{r.Suite, r.ID}] = len(lines)
		lines = append(lines, []string{
			r.Suite, r.ID, r.Link, r.Datapath, r.Target, r.Via, cmp.Or(r.Proxy, lab.ViaNone), workload, r.Status,
		})
	}
	if len(o.Suites) == 1 {
		header = header[1:]
		for i := range lines {
			lines[i] = lines[i][1:]
		}
	}
	if err := cli.PrintTable(c.Stdout, header, lines); err != nil {
		return err
	}
	if err := c.listReasons(rows); err != nil {
		return err
	}
	return c.countOthers(o, len(lines))
}

// listedRows returns rows with the status of their paths, each of which is tried once.
func listedRows(o bench.Options, selected []result.Row) []rowJSON {
	paths := map[rowKey]suites.Path{}
	for _, suite := range o.Suites {
		for _, path := range suite.Paths {
			paths[rowKey{suite.Name, path.ID}] = path
		}
	}
	tried := map[rowKey]rowJSON{}
	list := []rowJSON{}
	for _, row := range selected {
		of := rowKey{row.Suite, row.ID}
		is, ok := tried[of]
		if !ok {
			is.Status, is.Reason = pathStatus(paths[of])
			tried[of] = is
		}
		list = append(list, rowJSON{
			Suite: row.Suite, ID: row.ID, Workload: row.Workload, Flows: row.Key().Flows, Setup: row.Setup, Link: row.Link,
			Datapath: row.Datapath, Target: row.Target, Via: row.Via, Proxy: row.Proxy, Status: is.Status, Reason: is.Reason,
		})
	}
	return list
}

// listReasons prints each reason for a status once, with the rows that it holds for.
func (c *config) listReasons(rows []rowJSON) error {
	var reasons []string
	of := map[string][]string{}
	for _, r := range rows {
		if r.Reason == "" {
			continue
		}
		reason := r.Status + ": " + r.Reason
		if of[reason] == nil {
			reasons = append(reasons, reason)
		}
		if !slices.Contains(of[reason], r.ID) { // as several suites and workloads may have it
			of[reason] = append(of[reason], r.ID)
		}
	}
	var errs []error
	for _, reason := range reasons {
		_, err := fmt.Fprintf(c.Stdout, "\n%s\n%s", reason, indented(of[reason]))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// indented returns words on lines of up to 100 columns.
func indented(words []string) string {
	var text strings.Builder
	column := 0
	for _, word := range words {
		if column > 0 && column+1+len(word) > 100 {
			text.WriteString("\n")
			column = 0
		}
		before := " "
		if column == 0 {
			before = "  "
		}
		text.WriteString(before + word)
		column += len(before) + len(word)
	}
	return text.String() + "\n"
}

// countOthers prints how many further row IDs --all has.
func (c *config) countOthers(o bench.Options, listed int) error {
	if o.All || len(o.Only) > 0 {
		return nil
	}
	o.All = true
	all, err := o.Rows()
	if err != nil {
		return err
	}
	ids := map[rowKey]bool{}
	for _, row := range all {
		ids[rowKey{row.Suite, row.ID}] = true
	}
	if more := len(ids) - listed; more > 0 {
		_, err = fmt.Fprintf(c.Stdout, "\n%d more rows with --all\n", more)
	}
	return err
}

// pathStatus tells whether this machine can measure a path, and why not.
func pathStatus(p suites.Path) (status, reason string) {
	root := os.Geteuid() == 0
	try := p.Probe
	if !root {
		try = p.CheckInstalled
	}
	switch err := try(); {
	case err != nil:
		return result.StatusSkipped, err.Error()
	case !root && p.HasMode():
		return statusUnknown, "root can tell whether the kernel has the link mode"
	}
	return result.StatusOK, ""
}
