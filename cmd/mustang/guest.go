// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

func (c *config) guestInit() *cobra.Command { return &cobra.Command{Use: "guest-init", Hidden: true, RunE: help} }
