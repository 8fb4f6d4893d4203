// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

func (c *config) links() *cobra.Command { return &cobra.Command{Use: "links", Hidden: true, RunE: help} }
