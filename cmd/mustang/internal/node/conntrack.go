// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"

	"mustang/internal/datapath/conntrack"
)

func (c commands) conntrack() *cobra.Command {
	return cli.Group("conntrack", "Connections through services, and those that policies allow", c.conntrackList(), c.conntrackFlush(), c.conntrackStats(), c.conntrackTimeouts())
}

func (c commands) conntrackList() *cobra.Command {
	var f filterFlags
	cmd := &cobra.Command{
		Use: "ls", Short: "List connections",
		Long: `List connections, also those that are closed and keep their slot until another takes it.
SERVICE is the address that the client called. It is - for a direct connection that policies allow, also
if connect() translated a service's address (mustang socket attach). SOURCE is the client's address as
the backend sees it, - if it is the client's own. IDLE is the time since the last packet.`,
		Example: "  mustang conntrack ls --service=10.96.0.100 --state=established\n  mustang conntrack ls --client=192.168.10.11 -o json",
	}
	f.Add(cmd.Flags())
	return cli.Listing(cmd, func(format string) error {
		filter, err := f.Parse()
		if err != nil {
			return cli.Usage(err)
		}
		list, err := cli.Read(c.Config, func(d *datapath.Datapath) ([]conntrack.Connection, error) { return d.ConnectionTable().List(filter) })
		if err != nil {
			return err
		}
		return writeList(c.Stdout, format, list)
	})
}

func (c commands) conntrackFlush() *cobra.Command {
	var f filterFlags
	var all bool
	cmd := &cobra.Command{
		Use: "flush", Short: "Delete connections",
		Long: `Delete the connections that the flags select. The next packet of a client opens its connection
anew: with the same backend, as long as the service's backends do not change and it is without session affinity.
An open TCP connection is reset if its backend sends before the client does.`,
		Example: "  mustang conntrack flush --backend=192.168.10.10\n  mustang conntrack flush --all",
		Args:    cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := f.Parse()
			if err == nil && f.IsEmpty() != all {
				err = errors.New("want flags that select connections, or else --all")
			}
			if err != nil {
				return cli.Usage(err)
			}
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			n := 0
			err = c.OnExisting(cmd.Context(), nil, func(d *datapath.Datapath) (err error) {
				n, err = d.ConnectionTable().Flush(cmd.Context(), filter)
				return err
			})
			if err == nil || n > 0 {
				fmt.Fprintf(c.Stdout, "connections deleted: %d\n", n)
			}
			return err
		},
	}
	f.Add(cmd.Flags())
	cmd.Flags().BoolVar(&all, "all", false, "delete all connections")
	return cmd
}

func (c commands) conntrackStats() *cobra.Command {
	cmd := &cobra.Command{
		Use: "stats", Short: "Count connections by state, and tell who has the most",
		Long: `Count the slots of the connection table by the state of their connection. Slots that are
closed, expired (the time-out is over), void (the pod or the UDP backend is gone) or free go
to new connections. A client that has its share of open connections gets no new one. All clients other than pods of this node have one share, and are named "outside".`,
	}
	return cli.Listing(cmd, func(format string) error {
		stats, err := cli.Read(c.Config, func(d *datapath.Datapath) ([]conntrack.Stats, error) {
			s, err := d.ConnectionTable().Stats()
			return []conntrack.Stats{s}, err
		})
		if err != nil {
			return err
		}
		return writeStats(c.Stdout, format, append(stats, conntrack.Stats{})[0])
	})
}

func (c commands) conntrackTimeouts() *cobra.Command {
	var f timeoutFlags
	cmd := &cobra.Command{
		Use: "timeouts", Short: "Show time-outs of connections, or change them",
		Long: `Show how long after its last packet a connection ends, by state. Flags change time-outs, for
all connections at once, until mustang datapath unload.`,
		Example: "  mustang conntrack timeouts\n  mustang conntrack timeouts --established=4h --closed=5s",
	}
	f.Add(cmd.Flags())
	return cli.Listing(cmd, func(format string) error {
		return c.OnExisting(cmd.Context(), errors.New("no service or endpoint was added yet"), func(d *datapath.Datapath) error {
			timeouts, err := f.Set(cmd.Context(), d.ConnectionTable())
			if err != nil {
				return err
			}
			return writeTimeouts(c.Stdout, format, timeouts)
		})
	})
}
