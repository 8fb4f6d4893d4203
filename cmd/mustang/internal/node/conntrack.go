// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
)

type connectionJSON struct {
	Protocol  string `json:"protocol"`
	State     string `json:"state"`
	Client    string `json:"client"`
	Service   string `json:"service"`
	Source    string `json:"source"`
	Backend   string `json:"backend"`
	ServiceID uint32 `json:"service_id"`
	Age       int64  `json:"age_seconds"`
	Idle      int64  `json:"idle_seconds"`
}

var connectionTable = cli.Table[connectionJSON]{
	Key:    "connections",
	Header: []string{"PROTOCOL", "STATE", "CLIENT", "SERVICE", "SOURCE", "BACKEND", "AGE", "IDLE"},
	Row: func(c connectionJSON) []any {
		if c.Source == c.Client {
			c.Source = ""
		}
		if c.ServiceID == 0 {
			c.Service = ""
		}
		return []any{c.Protocol, c.State, c.Client, c.Service, c.Source, c.Backend, fmt.Sprintf("%ds", c.Age),
			fmt.Sprintf("%ds", c.Idle)}
	},
}

func (c commands) conntrackList() *cobra.Command {
	var filter flows.Filter
	cmd := &cobra.Command{
		Use: "ls", Short: "List connections",
		Long: `List connections, also those that are closed and keep their slot until another takes it.
SERVICE is the address that the client called, and - for a direct connection that policies allow.
SOURCE is the client's address as the backend sees it, - if it is the client's own.
IDLE is the time since the last packet.`,
		Example: "  mustang conntrack ls --service=10.96.0.100 --state=established\n  mustang conntrack ls " +
			"--client=192.168.10.11 -o json",
	}
	addFilter(cmd.Flags(), &filter)
	return cli.ListCommand(c.Config, cmd, connectionTable,
		func(_ context.Context, d *datapath.Datapath) (list []connectionJSON, err error) {
			found, err := d.ConnectionTable().List(filter)
			for _, c := range found {
				list = append(list, connectionJSON{
					c.Protocol.String(), c.State.String(), c.Client.String(), c.Service.String(), c.Source.String(),
					c.Backend.String(), c.ServiceID, int64(c.Age / time.Second), int64(c.Idle / time.Second),
				})
			}
			return list, err
		})
}

func (c commands) conntrackFlush() *cobra.Command {
	var all bool
	var filter flows.Filter
	cmd := &cobra.Command{
		Use: "flush", Short: "Delete connections",
		Long: `Delete the connections that the flags select. The next packet of a client opens its connection anew,
with the same backend unless the service has changed. An open TCP connection is reset if its backend
sends before the client does.`,
		Example: "  mustang conntrack flush --backend=192.168.10.10\n  mustang conntrack flush --all",
		PreRunE: cli.Check(func([]string) error {
			if reflect.ValueOf(filter).IsZero() != all {
				return errors.New("want flags that select connections, or else --all")
			}
			return nil
		}),
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			n := 0
			err := c.OnExisting(ctx, nil, func(d *datapath.Datapath) (err error) {
				n, err = d.ConnectionTable().Flush(ctx, filter)
				return err
			})
			if err == nil || n > 0 {
				fmt.Fprintf(c.Stdout, "connections deleted: %d\n", n)
			}
			return err
		}),
	}
	addFilter(cmd.Flags(), &filter)
	cmd.Flags().BoolVar(&all, "all", false, "delete all connections")
	return cmd
}

type statsJSON struct {
	Schema        int            `json:"schema"`
	Slots         int            `json:"slots"`
	Open          int            `json:"open"`
	FillPercent   float64        `json:"fill_percent"`
	States        map[string]int `json:"states"`
	Expired       int            `json:"expired"`
	Void          int            `json:"void"`
	Free          int            `json:"free"`
	LargestClient string         `json:"largest_client"`
	LargestOpen   int            `json:"largest_open"`
	Share         int            `json:"share"`
}

func (c commands) conntrackStats() *cobra.Command {
	return cli.Listing(&cobra.Command{
		Use: "stats", Short: "Count connections by state, and show the client with the most",
		Long: `Count the slots of the connection table by the state of their connection. Slots that are
closed, expired (the time-out is over), void (the pod or the UDP backend is gone) or free go
to new connections. A client that has its share of open connections gets no new one. All clients
other than pods of this node have one share, and are named "outside".`,
	}, func(format string) error {
		s, err := cli.Read(c.Config, func(d *datapath.Datapath) (flows.Stats, error) { return d.ConnectionTable().Stats() })
		if err != nil {
			return err
		}
		out := statsJSON{
			Schema: cli.Schema, Slots: s.Slots, Open: s.Open(), States: map[string]int{}, Expired: s.Expired, Void: s.Void,
			Free: s.Slots - s.Expired - s.Void, LargestOpen: s.LargestOpen, Share: s.Share,
		}
		if s.Slots > 0 {
			out.FillPercent = 100 * float64(out.Open) / float64(s.Slots)
		}
		if s.Largest.IsValid() {
			out.LargestClient = s.Largest.String()
		} else if s.LargestOpen > 0 {
			out.LargestClient = "outside"
		}
		rows := [][]any{{"open", out.Open, fmt.Sprintf("%.1f %%", out.FillPercent)}}
		for _, t := range timeouts(nil) {
			n := s.States[t.state]
			out.States[t.state.String()] = n
			out.Free -= n
			rows = append(rows, []any{t.state, n})
		}
		if format == "json" {
			return cli.PrintJSON(c.Stdout, out)
		}
		return cli.PrintTable(c.Stdout, []string{"slots", strconv.Itoa(out.Slots)}, append(rows,
			[]any{"expired", out.Expired}, []any{"void", out.Void}, []any{"free", out.Free},
			[]any{"largest client", out.LargestOpen, out.LargestClient}, []any{"share of a client", out.Share}))
	})
}

type timeout struct {
	state flows.State
	value *time.Duration
	use   string
}

func timeouts(t *objects.Timeouts) []timeout {
	t = cmp.Or(t, &objects.Timeouts{})
	return []timeout{
		{flows.StateSYN, &t.SYN, "TCP: the client has not answered the backend yet"},
		{flows.StateEstablished, &t.Established, "TCP: open, or closed by one end"},
		{flows.StateClosed, &t.Closed, "TCP: closed by both ends, or reset"},
		{flows.StateUDP, &t.UDP, "UDP: the backend has not answered"},
		{flows.StateReplied, &t.UDPReplied, "UDP: the backend has answered"},
	}
}

func (c commands) conntrackTimeouts() *cobra.Command {
	cmd := &cobra.Command{
		Use: "timeouts", Short: "Show time-outs of connections, or change them",
		Long: `Show the idle time after which a connection ends, for each state. Flags change time-outs, for
all connections at once, until mustang datapath unload.`,
		Example: "  mustang conntrack timeouts\n  mustang conntrack timeouts --established=4h --closed=5s",
	}
	for _, t := range timeouts(nil) {
		cmd.Flags().Duration(t.state.String(), 0, t.use)
	}
	return cli.Listing(cmd, func(format string) error {
		none := errors.New("no service or endpoint was added yet")
		return c.OnExisting(cmd.Context(), none, func(d *datapath.Datapath) error {
			now, err := d.ConnectionTable().Timeouts()
			changed := false
			seconds, rows := map[string]float64{}, [][]any{}
			for _, t := range timeouts(&now) {
				name := t.state.String()
				if cmd.Flags().Changed(name) {
					*t.value, _ = cmd.Flags().GetDuration(name)
					changed = true
				}
				seconds[name] = t.value.Seconds()
				rows = append(rows, []any{name, t.value})
			}
			if err == nil && changed {
				err = d.ConnectionTable().SetTimeouts(cmd.Context(), now)
			}
			switch {
			case err != nil:
				return err
			case format == "json":
				return cli.PrintJSON(c.Stdout, struct {
					Schema   int                `json:"schema"`
					Timeouts map[string]float64 `json:"timeout_seconds"`
				}{cli.Schema, seconds})
			}
			return cli.PrintTable(c.Stdout, []string{"STATE", "TIME-OUT"}, rows)
		})
	})
}

func addFilter(flags *pflag.FlagSet, f *flows.Filter) {
	const end = "ADDRESS or ADDRESS:PORT"
	flags.Var(cli.One(&f.Client, parseAddr, "an address"), "client", "`ADDRESS` of the client")
	flags.Var(cli.One(&f.Service, parseEnd, end), "service", "`ADDRESS[:PORT]` that the client connected to")
	flags.Var(cli.One(&f.Backend, parseEnd, end), "backend", "`ADDRESS[:PORT]` of the backend")
	flags.Var(protocolFlag(&f.Protocol), "protocol", "tcp, udp, sctp or any")
	flags.Var(cli.List(&f.States, parseState, ""), "state",
		"syn, established, closed, unreplied or replied; repeat for more")
}

func parseState(text string) (s flows.State, err error) { return s, s.UnmarshalText([]byte(text)) }

// parseAddr parses an address in the form of connections: without a zone, and IPv4 unmapped.
func parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	return addr.Unmap().WithZone(""), err
}

// parseEnd parses ADDRESS or ADDRESS:PORT, with brackets, or without if unambiguous.
func parseEnd(text string) (netip.AddrPort, error) {
	bare := text
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		bare = text[1 : len(text)-1]
	}
	if addr, err := parseAddr(bare); err == nil {
		return netip.AddrPortFrom(addr, 0), nil
	}
	end, err := netip.ParseAddrPort(text)
	if err == nil && end.Port() == 0 {
		err = errors.New("port 0")
	}
	return netip.AddrPortFrom(end.Addr().Unmap(), end.Port()), err
}
