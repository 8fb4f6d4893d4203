// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/version"
)

func (c *config) version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cli.Arguments(),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(c.Stdout, "mustang %s %s %s/%s\n", version.Program(), runtime.Version(), runtime.GOOS,
				runtime.GOARCH)
			return err
		},
	}
}

func manual() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write the manual pages of all commands to a directory",
		Hidden: true,
		Args:   cli.Arguments("DIRECTORY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root.InitDefaultCompletionCmd()
			root.DisableAutoGenTag = true // the pages of one source are the same each time
			eachCommand(root, func(cmd *cobra.Command) { cmd.Long = preformatted(cmd.Long) })
			header := doc.GenManHeader{Section: "1", Source: "mustang " + version.Program(), Manual: "Mustang"}
			return doc.GenManTree(root, &header, filepath.Clean(args[0]))
		},
	}
}

func eachCommand(cmd *cobra.Command, do func(*cobra.Command)) {
	do(cmd)
	for _, sub := range cmd.Commands() {
		eachCommand(sub, do)
	}
}

// preformatted returns a help text in Markdown: lines that are indented stay as they are.
func preformatted(text string) string {
	return regexp.MustCompile("(?m)^  ").ReplaceAllString(text, "      ")
}
