// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
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

// listRows lists the rows of suites, and whether their programs are installed and, as root, the kernel has the link.
func (c *config) listRows(o bench.Options, format string) error {
	selected, err := o.Rows()
	if err = cmp.Or(err, o.Validate()); err != nil {
		return cli.Usage(err)
	}
	list := listed(o.Suites, selected)
	if format != "json" {
		list = byID(list)
	}
	table := cli.Table[rowJSON]{
		Key:    "rows",
		Header: []string{"SUITE", "ROW", "LINK", "DATAPATH", "TARGET", "VIA", "PROXY", "WORKLOADS", "STATUS"},
		Row: func(r rowJSON) []any {
			return []any{r.Suite, r.ID, r.Link, r.Datapath, r.Target, r.Via, cmp.Or(r.Proxy, lab.ViaNone), r.Workload, r.Status}
		},
	}
	if len(o.Suites) == 1 {
		table.Wide = []string{"SUITE"}
	}
	if err = cli.PrintList(c.Stdout, format, list, table); err != nil || format == "json" {
		return err
	}
	c.listReasons(list)
	if o.All || len(o.Only) > 0 {
		return nil
	}
	o.All = true
	all, err := o.Rows()
	if more := len(byID(listed(nil, all))) - len(list); more > 0 {
		fmt.Fprintf(c.Stdout, "\n%d more rows with --all\n", more)
	}
	return err
}

func listed(of []suites.Suite, rows []result.Row) (list []rowJSON) {
	type key struct{ suite, id string }
	status := map[key][2]string{}
	for _, suite := range of {
		for _, path := range suite.Paths {
			selected := func(r result.Row) bool { return r.Suite == suite.Name && r.ID == path.ID }
			if slices.ContainsFunc(rows, selected) {
				status[key{suite.Name, path.ID}] = pathStatus(path)
			}
		}
	}
	for _, r := range rows {
		s := status[key{r.Suite, r.ID}]
		list = append(list, rowJSON{
			r.Suite, r.ID, r.Workload, r.Key().Flows, r.Setup, r.Link, r.Datapath, r.Target, r.Via, r.Proxy, s[0], s[1],
		})
	}
	return list
}

func byID(list []rowJSON) (out []rowJSON) {
	for _, r := range list {
		r.Workload = suites.Workload{Name: r.Workload, Flows: r.Flows, Setup: r.Setup}.String()
		if at := slices.IndexFunc(out, func(o rowJSON) bool { return o.Suite == r.Suite && o.ID == r.ID }); at < 0 {
			out = append(out, r)
		} else {
			out[at].Workload += "," + r.Workload
		}
	}
	return out
}

func (c *config) listReasons(rows []rowJSON) {
	var reasons []string
	of := map[string][]string{}
	for _, r := range rows {
		if reason := r.Status + ": " + r.Reason; r.Reason != "" && !slices.Contains(of[reason], r.ID) {
			if of[reason] == nil {
				reasons = append(reasons, reason)
			}
			of[reason] = append(of[reason], r.ID)
		}
	}
	for _, reason := range reasons {
		fmt.Fprintf(c.Stdout, "\n%s\n  %s\n", reason, strings.Join(of[reason], " "))
	}
}

func pathStatus(p suites.Path) [2]string {
	root := os.Geteuid() == 0
	try := p.Probe
	if !root {
		try = p.CheckInstalled
	}
	switch err := try(); {
	case err != nil:
		return [2]string{result.StatusSkipped, err.Error()}
	case !root && p.HasMode():
		return [2]string{"?", "needs root to probe the link mode"}
	}
	return [2]string{result.StatusOK}
}
