// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/netns"
	"mustang/internal/podlink"
)

func (c *config) probe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Show the link modes and features of this machine, and what the others need",
		Long: `Show the link modes and features of this machine, and what the others need: a kernel
version, a module, an option of the kernel's configuration, or a Debian package.

The command tries each in a temporary network namespace. It changes nothing else, but the
kernel may load modules. The exit code is 0 even if features are missing. Needs root.`,
		Example: "  mustang probe\n  mustang probe -o json",
	}
	return cli.Listing(cmd, func(format string) error {
		report, err := runProbe()
		if err != nil {
			return err
		}
		if format == "json" {
			return cli.PrintJSON(c.Stdout, report)
		}
		return report.print(c.Stdout)
	})
}

// check tests one feature of a machine.
type check struct {
	group, name string
	use         string // the purpose of the feature
	// needs names the requirement of a missing feature; module is a kernel module that provides it.
	needs, module string
	// run returns details for the table, or an error if the feature is missing.
	run func(p *prober) (detail string, err error)
}

type prober struct {
	scratch *netns.Namespace // temporary
	kernel  string           // the release of the running one
}

// probeReport is the document of probe -o json.
type probeReport struct {
	Schema    int           `json:"schema"`
	Kernel    string        `json:"kernel"`
	Machine   string        `json:"machine"`
	LinkModes []checkResult `json:"link_modes"`
	Features  []checkResult `json:"features"`
}

// checkResult is the result of a check. A feature is unavailable if its check fails for any reason.
type checkResult struct {
	Group     string `json:"group,omitempty"`
	Name      string `json:"name"`
	Available bool   `json:"available"`
	Detail    string `json:"detail,omitempty"`
	Use       string `json:"use,omitempty"`
	Missing   string `json:"missing,omitempty"` // the requirement, and the kernel's error
	Module    string `json:"module,omitempty"`  // the kernel module of a missing link mode
	Since     string `json:"since,omitempty"`   // the first Linux version that has it
}

func runProbe() (_ probeReport, err error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return probeReport{}, fmt.Errorf("read the release of the kernel: %w", err)
	}
	scratch, err := netns.New()
	if err != nil {
		return probeReport{}, err
	}
	defer func() { err = errors.Join(err, scratch.Close()) }()
	p := &prober{scratch, unix.ByteSliceToString(name.Release[:])}
	return probeReport{
		cli.Schema, p.kernel, unix.ByteSliceToString(name.Machine[:]), p.runAll(linkChecks()), p.runAll(featureChecks()),
	}, nil
}

func (p *prober) runAll(checks []check) (results []checkResult) {
	for _, c := range checks {
		detail, err := c.run(p)
		r := checkResult{Group: c.group, Name: c.name, Use: c.use, Available: err == nil, Detail: detail}
		if err != nil {
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

func (r probeReport) print(w io.Writer) error {
	fmt.Fprintf(w, "kernel %s on %s\n\n", r.Kernel, r.Machine)
	yesNo := map[bool]string{true: "yes", false: "no"}
	var rows [][]any
	for _, mode := range r.LinkModes {
		rows = append(rows, []any{mode.Name, yesNo[mode.Available], mode.note()})
	}
	if err := cli.PrintTable(w, []string{"LINK MODE", "AVAILABLE", "DETAILS"}, rows); err != nil {
		return err
	}
	fmt.Fprintln(w)
	rows = nil
	for _, feature := range r.Features {
		rows = append(rows, []any{feature.Group, feature.Name, yesNo[feature.Available], feature.note()})
	}
	return cli.PrintTable(w, []string{"GROUP", "FEATURE", "AVAILABLE", "DETAILS"}, rows)
}

func (r checkResult) note() string {
	switch {
	case !r.Available:
		return "missing: " + r.Missing
	case r.Detail != "" && r.Use != "":
		return r.Use + " (" + r.Detail + ")"
	}
	return r.Use + r.Detail
}
