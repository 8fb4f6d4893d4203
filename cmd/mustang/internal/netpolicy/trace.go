// SPDX-License-Identifier: Apache-2.0

package netpolicy

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
)

// deniedJSON is a line of policy trace -o json.
type deniedJSON struct {
	Time        string `json:"time"`
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Protocol    string `json:"protocol"`
	Verdict     string `json:"verdict"`
	Rule        string `json:"rule"`
}

func (c commands) trace() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Print connections that policies deny, as they come",
		Long: `Print a line for each connection that policies deny, as it comes, with the rule that denies it,
until Ctrl-C. "audited" connections passed, as policies are only audited (policy apply --audit). A
packet that is sent again is denied again. With -o json each line is an object.`,
		Example: "  mustang policy trace",
		Args:    cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.CheckOutput(format); err != nil {
				return err
			}
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			return c.OnExisting(cmd.Context(), errors.New("there are no policies"), func(d *datapath.Datapath) error {
				fmt.Fprintln(c.Stderr, "mustang: waiting for denied connections; Ctrl-C ends")
				return d.Policies().Watch(cmd.Context(), func(e policies.Denied) error { return c.printDenied(e, format) })
			})
		},
	}
	cli.AddOutput(cmd, &format)
	return cmd
}

func (c commands) printDenied(e policies.Denied, format string) error {
	line := deniedJSON{
		e.Time.Format("15:04:05.000"), e.Source.String(), e.Destination.String(), e.Protocol.String(), "denied", e.Rule.String(),
	}
	if e.Audited {
		line.Verdict = "audited"
	}
	if format == "json" {
		return json.NewEncoder(c.Stdout).Encode(line)
	}
	_, err := fmt.Fprintf(c.Stdout, "%s %s %s > %s %s by %s\n", line.Time, line.Protocol, line.Source, line.Destination, line.Verdict, line.Rule)
	return err
}
