// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

func (c *config) tun() *cobra.Command { return &cobra.Command{Use: "tun", Hidden: true, RunE: help} }
