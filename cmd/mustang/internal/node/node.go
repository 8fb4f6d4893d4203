// SPDX-License-Identifier: Apache-2.0

// Package node is the commands on the datapath of a node, but for those on services: what it is attached to, its
// connections, and its state.
package node

import (
	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
)

// commands are those of the package.
type commands struct{ *cli.Config }

// Commands returns the commands ep, uplink, socket, conntrack, status, counters, datapath and reset.
func Commands(config *cli.Config) []*cobra.Command {
	c := commands{config}
	return []*cobra.Command{c.ep(), c.uplink(), c.socket(), c.conntrack(), c.status(), c.counters(), c.datapath(), c.unload("reset")}
}
