// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

func (c *config) socket() *cobra.Command { return &cobra.Command{Use: "socket", Hidden: true, RunE: help} }
