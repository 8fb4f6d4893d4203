// SPDX-License-Identifier: Apache-2.0

// Package traffic implements the commands that restrict or show the traffic of pods.
package traffic

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/flows"
	"mustang/internal/lock"
	"mustang/internal/policy"
	"mustang/internal/suggest"
)

// Commands returns the commands policy, monitor and metrics.
func Commands(config *cli.Config) []*cobra.Command {
	c := commands{config}
	policy := cli.Group("policy", "Network policies: which pods may talk", c.apply(), c.list(), c.remove(), c.explain(),
		trace(config))
	return []*cobra.Command{policy, monitorCommand(config), metricsCommand(config)}
}

func monitorCommand(config *cli.Config) *cobra.Command {
	var filter filter
	cmd := &cobra.Command{
		Use:   "monitor",
		Short: "Print connections and drops, as they come",
		Long: `Print a line for each new connection of the connection table, socket that gets a backend, dropped
packet, and denied connection, until Ctrl-C. A drop has the reason, and a denied connection the rule. A
packet that a policy denies has two lines: denied and dropped. Filters select lines; values of one
filter are alternatives. With -o json each line is an object. Each CPU reports at most 2,048 events in
1.07 s; a line has the number left out. One command can monitor or trace at a time.`,
		Example: `  mustang monitor
  mustang monitor --verdict dropped,denied --pod shop/web
  mustang monitor --address 10.0.0.0/24 --port 53 -o json`,
	}
	filter.add(cmd)
	watching(cmd, config, &filter)
	cli.CompleteFlag(cmd, "verdict", cli.Fixed(verdicts...))
	cli.CompleteFlag(cmd, "pod", func() []string { return podNames(config) })
	return cmd
}

func trace(config *cli.Config) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Print connections that policies deny, as they come",
		Long: `Print a line for each connection that policies deny, as it comes, with the rule that denies it, as
mustang monitor --verdict denied,audited does. "audited" connections passed.`,
		Example: "  mustang policy trace",
	}
	return watching(cmd, config, &filter{verdicts: []flows.Verdict{flows.Denied, flows.Audited}})
}

func watching(cmd *cobra.Command, config *cli.Config, f *filter) *cobra.Command {
	var format string
	cli.AddOutput(cmd, &format)
	cmd.RunE = cli.AsRoot(func(ctx context.Context, _ []string) error {
		return (&monitor{Config: config, filter: *f, json: format == "json"}).watch(ctx, cmd.CommandPath())
	})
	return cmd
}

func (m *monitor) watch(ctx context.Context, path string) error {
	none := errors.New("the datapath does not exist yet: mustang ep add and mustang svc add make one; " +
		"for a lab: mustang lab exec HOST -- " + path)
	return m.OnExisting(ctx, none, func(d *datapath.Datapath) error {
		fmt.Fprintln(m.Stderr, "mustang: waiting for connections and drops; Ctrl-C ends")
		m.names = &names{datapath: d}
		if err := m.noteAbsent(); err != nil {
			return err
		}
		err := d.Flows().Watch(ctx, m.print, m.leftOut, m.filter.verdicts...)
		switch other, ok := errors.AsType[*lock.Error](err); {
		case ok && ctx.Err() == nil:
			return fmt.Errorf("another monitor or policy trace runs, and only one can at a time: kill %d on this node ends it",
				other.PID)
		case errors.Is(err, os.ErrNotExist):
			return errors.New("the datapath was removed: there is nothing to monitor any more")
		}
		return err
	})
}

var verdicts = []string{string(flows.Made), string(flows.Dropped), string(flows.Denied), string(flows.Audited)}

func podNames(config *cli.Config) (pods []string) {
	_ = config.Existing(nil, func(d *datapath.Datapath) error {
		known, err := d.Policies().Snapshot()
		pods = cli.Convert(known.Pods, func(p policy.Pod) string { return cli.Printable(p.Namespace + "/" + p.Name) })
		return err
	})
	slices.Sort(pods)
	return slices.Compact(pods)
}

type monitor struct {
	*cli.Config
	names  *names
	filter filter
	json   bool
}

// noteAbsent prints which of the filter's pods do not exist yet.
func (m *monitor) noteAbsent() error {
	if len(m.filter.pods) == 0 {
		return nil
	}
	if err := m.names.refresh(); err != nil {
		return err
	}
	known := slices.Collect(maps.Values(m.names.addresses))
	for _, want := range m.filter.pods {
		if !slices.Contains(known, want) {
			fmt.Fprintf(m.Stderr, "mustang: note: there is no pod %s now%s\n", want, suggest.Text(want, known))
		}
	}
	return nil
}

func (m *monitor) print(e flows.Event) error {
	if !m.filter.matches(&e) {
		return nil
	}
	l, err := m.names.line(&e)
	if err != nil || !m.filter.matchesPods(&l) {
		return err
	}
	if m.json {
		return json.NewEncoder(m.Stdout).Encode(l)
	}
	_, err = fmt.Fprintln(m.Stdout, l.text(e.Time))
	return err
}

func (m *monitor) leftOut(n uint64) error {
	format := "%d events left out, as too many came at once\n"
	if m.json {
		format = `{"left_out":%d}` + "\n"
	}
	_, err := fmt.Fprintf(m.Stdout, format, n)
	return err
}

type filter struct {
	pods     []string
	networks []netip.Prefix
	ports    []uint16
	verdicts []flows.Verdict
}

func (f *filter) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var(cli.List(&f.pods, parsePod, "NAMESPACE/NAME"), "pod",
		"only with this pod: NAMESPACE/NAME")
	flags.Var(cli.List(&f.networks, parseNetwork, "an address or a network, as 10.0.0.0/24"), "address",
		"only with this address, or one in this network, at either end or as backend")
	flags.Var(cli.List(&f.ports, parsePortNumber, "1 to 65535"), "port",
		"only with this port, at either end or of the backend")
	flags.Var(cli.List(&f.verdicts, parseVerdict, "made, dropped, denied or audited"), "verdict",
		"only these: made, dropped, denied, audited")
}

func parsePod(text string) (string, error) {
	if parts := strings.Split(text, "/"); len(parts) != 2 || slices.Contains(parts, "") {
		return "", errors.New("not the name of a pod")
	}
	return text, nil
}

func parseNetwork(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		addr = addr.Unmap()
		return addr.Prefix(addr.BitLen())
	}
	network, err := netip.ParsePrefix(text)
	if network.Addr().Is4In6() {
		err = errors.New("a network of IPv4 in IPv6")
	}
	return network.Masked(), err
}

func parsePortNumber(text string) (uint16, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	if port == 0 {
		err = cmp.Or(err, errors.New("port 0"))
	}
	return uint16(port), err
}

func parseVerdict(text string) (flows.Verdict, error) {
	if !slices.Contains(verdicts, text) {
		return "", errors.New("unknown verdict")
	}
	return flows.Verdict(text), nil
}

// matches reports whether the filter selects an event, as far as it can without the names of pods.
func (f *filter) matches(e *flows.Event) bool {
	port, network := len(f.ports) == 0, len(f.networks) == 0
	for _, end := range []netip.AddrPort{e.Source, e.Destination, e.Backend} {
		port = port || slices.Contains(f.ports, end.Port())
		network = network || slices.ContainsFunc(f.networks, func(n netip.Prefix) bool { return n.Contains(end.Addr()) })
	}
	return port && network && (len(f.verdicts) == 0 || slices.Contains(f.verdicts, e.Verdict))
}

func (f *filter) matchesPods(l *line) bool {
	return len(f.pods) == 0 || slices.ContainsFunc(f.pods, func(want string) bool {
		return slices.Contains([]string{l.Pod, l.SourcePod, l.DestinationPod, l.BackendPod}, want)
	})
}
