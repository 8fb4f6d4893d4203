// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strconv"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/bench"
	"mustang/internal/bench/suites"
	"mustang/internal/result"
)

// rowJSON is a row of bench --list -o json.
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
	Status   string       `json:"status"`
	Reason   string       `json:"reason,omitempty"`
}

// statusUnknown is the status of a row in a list whose link mode was not tried.
const statusUnknown = "?"

// listRows lists the rows of suites, and whether the programs that they need are
// installed. As root it also tries whether the kernel has their link modes.
func (c *config) listRows(o bench.Options, format string) error {
	selected, err := o.Rows()
	if err != nil {
		return cli.Usage(err)
	}
	type key struct{ suite, path string }
	paths := map[key]suites.Path{}
	for _, suite := range o.Suites {
		for _, path := range suite.Paths {
			paths[key{suite.Name, path.ID}] = path
		}
	}
	type tried struct{ status, reason string }
	known := map[key]tried{}
	list := []rowJSON{}
	var rows [][]string
	for _, row := range selected {
		of := key{row.Suite, row.ID}
		is, ok := known[of]
		if !ok {
			is.status, is.reason = pathStatus(paths[of])
			known[of] = is
		}
		item := rowJSON{
			Suite: row.Suite, ID: row.ID, Workload: row.Workload, Flows: row.Key().Flows, Setup: row.Setup,
			Link: row.Link, Datapath: row.Datapath, Target: row.Target, Via: row.Via, Status: is.status, Reason: is.reason,
		}
		list = append(list, item)
		rows = append(rows, []string{item.Suite, item.ID, suites.Workload{Name: row.Workload, Setup: row.Setup}.String(), strconv.Itoa(item.Flows), item.Link, item.Datapath,
			item.Target, item.Via, item.Status, item.Reason})
	}
	if format == "json" {
		return cli.PrintJSON(c.Stdout, struct {
			Schema int       `json:"schema"`
			Rows   []rowJSON `json:"rows"`
		}{cli.Schema, list})
	}
	return cli.PrintTable(c.Stdout, []string{"SUITE", "ROW", "WORKLOAD", "FLOWS", "LINK", "DATAPATH", "TARGET", "VIA", "STATUS", "REASON"}, rows)
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
