// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

func (c *config) probe() *cobra.Command { return &cobra.Command{Use: "probe", Hidden: true, RunE: help} }
