// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"mustang/internal/nl"
	"mustang/internal/podlink"
)

func (c *config) probe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Show which link modes and features this machine has, and what is missing for the others",
		Long: `Show which link modes and features this machine has, and what is missing for the others:
a kernel version, a module, an option of the kernel's configuration, or a Debian package.

Each is tried, in a network namespace that is thrown away; nothing else changes, except
that the kernel may load a module that it is asked about. The exit code is 0 whatever is
missing. Needs root.`,
		Example: "  mustang probe\n  mustang probe -o json",
	}
	return listing(cmd, func(format string) error {
		report, err := runProbe()
		if err != nil {
			return err
		}
		if format == "json" {
			return printJSON(c.stdout, report)
		}
		return report.print(c.stdout)
	})
}

// check is one thing that a machine may have.
type check struct {
	group, name string
	// use says what it is good for.
	use string
	// needs names what brings it, if it is missing; module is the kernel module
	// that does.
	needs, module string
	// run returns nil and maybe a detail for people, or why it isn't there.
	run func(p *prober) (detail string, err error)
}

// prober is what checks work with.
type prober struct {
	scratch *nl.Namespace // to be thrown away
	kernel  string        // its release
}

// probeReport is what probe -o json prints.
type probeReport struct {
	Schema    int           `json:"schema"`
	Kernel    string        `json:"kernel"`
	Machine   string        `json:"machine"`
	LinkModes []checkResult `json:"link_modes"`
	Features  []checkResult `json:"features"`
}

// checkResult is what became of a check. What can't be found out is not
// available.
type checkResult struct {
	Group     string `json:"group,omitempty"`
	Name      string `json:"name"`
	Available bool   `json:"available"`
	Detail    string `json:"detail,omitempty"`
	Use       string `json:"use,omitempty"`
	Missing   string `json:"missing,omitempty"` // what is needed, and what the kernel said
	Module    string `json:"module,omitempty"`  // the kernel module that a missing link mode needs
	Since     string `json:"since,omitempty"`   // the Linux version that first had it
}

func runProbe() (_ probeReport, err error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return probeReport{}, fmt.Errorf("read the kernel's release: %w", err)
	}
	report := probeReport{
		Schema: schema, Kernel: unix.ByteSliceToString(name.Release[:]), Machine: unix.ByteSliceToString(name.Machine[:]),
	}
	scratch, err := nl.NewNamespace()
	if err != nil {
		return probeReport{}, err
	}
	defer func() { err = errors.Join(err, scratch.Close()) }()
	p := &prober{scratch: scratch, kernel: report.Kernel}
	report.LinkModes = p.runAll(linkChecks())
	report.Features = p.runAll(featureChecks())
	return report, nil
}

func (p *prober) runAll(checks []check) []checkResult {
	results := []checkResult{}
	for _, c := range checks {
		detail, err := c.run(p)
		r := checkResult{Group: c.group, Name: c.name, Use: c.use, Available: err == nil}
		if err == nil {
			r.Detail = detail
		} else {
			r.Missing = c.missing(p, err)
		}
		var mode *podlink.UnsupportedError
		if errors.As(err, &mode) {
			r.Module, r.Since = mode.Module, mode.Since
		}
		results = append(results, r)
	}
	return results
}

// print writes the report as two tables.
func (r probeReport) print(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "kernel %s on %s\n\n", r.Kernel, r.Machine); err != nil {
		return err
	}
	var rows [][]string
	for _, mode := range r.LinkModes {
		rows = append(rows, []string{mode.Name, mode.word(), mode.note()})
	}
	if err := printTable(w, []string{"LINK MODE", "HERE", "HOW, OR WHAT IS MISSING"}, rows); err != nil {
		return err
	}
	fmt.Fprintln(w)
	rows = nil
	for _, feature := range r.Features {
		rows = append(rows, []string{feature.Group, feature.Name, feature.word(), feature.note()})
	}
	return printTable(w, []string{"FEATURE OF", "NAME", "HERE", "WHAT FOR, OR WHAT IS MISSING"}, rows)
}

func (r checkResult) word() string {
	if r.Available {
		return "yes"
	}
	return "no"
}

// note is one line on the result.
func (r checkResult) note() string {
	switch {
	case !r.Available:
		return "missing: " + r.Missing
	case r.Detail != "" && r.Use != "":
		return r.Use + " (" + r.Detail + ")"
	}
	return r.Use + r.Detail
}
