// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/lab"
	"mustang/internal/lab/labfile"
)

// readLab sets the options of a lab that a file describes. What describes a topology is refused beside it.
func (c *config) readLab(cmd *cobra.Command, path string, o *lab.Options) (err error) {
	cmd.LocalNonPersistentFlags().VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && flag.Name != "file" && flag.Name != "name" && err == nil {
			err = cli.Usage(fmt.Errorf("--%s and -f %s: the file describes all of the lab but its name", flag.Name, path))
		}
	})
	if err != nil {
		return err
	}
	file, err := cli.ReadInput(cmd.Context(), c.Environment, path, func(in io.Reader) (*labfile.Lab, error) {
		file, err := labfile.Read(in, cli.InputName(path))
		return file, cli.Usage(err)
	})
	if err != nil {
		return err
	}
	*o = lab.Options{Name: cmp.Or(o.Name, file.Name), File: file}
	return nil
}
