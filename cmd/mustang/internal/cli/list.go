// SPDX-License-Identifier: Apache-2.0

package cli

import "github.com/spf13/cobra"

// Listing makes cmd a command that lists something: with -o table or json, as root and
// without arguments. It calls show with the format.
func Listing(cmd *cobra.Command, show func(format string) error) *cobra.Command {
	var format string
	cmd.Args = Arguments()
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := CheckOutput(format); err != nil {
			return err
		}
		if err := RequireRoot(cmd); err != nil {
			return err
		}
		return show(format)
	}
	AddOutput(cmd, &format)
	return cmd
}
