// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/internal/bench"
	"mustang/internal/bench/host"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/worker"
	"mustang/internal/report"
	"mustang/internal/result"
	"mustang/internal/result/rundir"
)

// bench is the command that measures suites.
func (c *config) bench() *cobra.Command {
	var o bench.Options
	var format string
	var list, guest bool
	var flags benchFlags
	cmd := &cobra.Command{
		Use:   "bench [SUITE]",
		Short: "Measure which way of connecting pods is the fastest on this machine",
		Long: `Build the networks of a suite in network namespaces, measure them side by side in
interleaved rounds, and prove with counters that traffic took the path that each row
claims. The suites (pod-links if none is named):

` + suiteList() + `
Each run makes a directory in the output directory, named by its start in UTC, with
results.json and report.html; "latest" links to the last one. Ctrl-C keeps the samples so far.
The answer comes last; -o wide prints all tables before it. The machine's own network,
firewall and sysctls are not changed.

With --vm the suite runs in a virtual machine with Debian's newest 6.12 kernel, which has
all link modes. There bench counts the instructions per packet and per transaction, which
are repeatable, but do not reflect caches and parallelism.

With --peer the server runs on another machine: the command starts mustang there over
standard input and output, and ends it. It can be ssh, kubectl exec -i or nsenter; it is
split into words with the quoting rules of a shell, but no shell runs. Load goes to the
host of ssh, or to --peer-address. Only rows from host to host are measured, with this
machine itself as the client. With --uplink, so are the rows of suite latency from a pod:
the lab gets a macvlan device on the uplink, which is not changed itself, and the two free
addresses of --uplink-addresses. The peer must have an address in the same network.

The exit code is 1 if a row failed.`,
		Example: `  mustang bench pod-links
  mustang bench all --quick
  mustang bench pod-links --quick -o json
  mustang bench switching --wire-rate 10gbit
  mustang bench cni --only bridge --only mustang-veth
  mustang bench latency --peer 'ssh root@10.0.0.1'
  mustang bench latency --peer 'ssh root@10.0.0.1' --uplink eth1 --uplink-addresses 10.0.0.50/24,10.0.0.51/24
  mustang bench latency --peer 'kubectl exec -i server --' --peer-address 10.244.1.7
  mustang bench pod-links --only veth --only 'veth+ebpf' --rounds 20 --out results
  mustang bench --vm pod-links --only ipvlan-l2 --only 'ipvlan-l2+ebpf'
  mustang bench --list all`,
		Args: arguments("[SUITE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format, []string{"table", "wide", "json"}); err != nil {
				return err
			}
			name := suites.Default
			if len(args) == 1 {
				name = args[0]
			}
			var err error
			if o.Suites, err = suites.Lookup(name); err != nil {
				return usage(err)
			}
			if err := flags.parse(cmd, &o); err != nil {
				return usage(err)
			}
			switch {
			case guest:
				return c.benchVM(cmd, o, flags.out)
			case list:
				return c.listRows(o, format)
			}
			return c.runBench(cmd, o, flags.out, format)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&format, "output", "o", "table", "output format: table (the answer), wide (all tables too) or json")
	flags.addSampling(f, &o)
	f.BoolVar(&list, "list", false, "list the rows, and whether this machine can measure them")
	f.StringVar(&flags.out, "out", "mustang-results", "directory that the run's directory is made in")
	f.BoolVar(&o.Quick, "quick", false, "take about a minute per suite; too short for reliable results")
	flags.peer.add(f)
	f.StringVar(&flags.wireRate, "wire-rate", "", "rate of the wire between two hosts, such as 10gbit (default: unlimited)")
	f.DurationVar(&o.WireDelay, "wire-delay", 0, "delay of the wire between two hosts in each direction (needs netem in the kernel)")
	f.StringVar(&flags.cpus, "cpus", "", "CPUs that client and server are pinned to, such as 0,1 (default: both on the first; none on a peer)")
	f.BoolVar(&guest, "vm", false, "run in a virtual machine with a stock kernel, and count instructions")
	f.StringVar(&o.Count, "count", "", "count \"instructions\", on a machine whose clock counts them (set by --vm)")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of the order of rows (default: random, and printed)")
	return cmd
}

// benchFlags are flags that have to be parsed.
type benchFlags struct {
	cpus, wireRate, until, out string
	peer                       peerFlags
}

// addSampling adds the flags that say what and how much is measured.
func (t *benchFlags) addSampling(f *pflag.FlagSet, o *bench.Options) {
	f.StringArrayVar(&o.Only, "only", nil, "measure only these rows: an ID, its beginning up to a slash, or a pattern in which * and ? match no slash (repeatable)")
	f.DurationVar(&o.Time, "time", 0, "time for each suite (default 2m30s; 35s with --quick)")
	f.IntVar(&o.Rounds, "rounds", 0, "samples of each row, in place of --time (suite cni, --vm and --peer: default 10; 6 with --quick or --vm)")
	f.StringVar(&t.until, "until", "", "end a suite when all intervals are this narrow, such as 0.5%, or --time is over (default then 10m)")
	f.DurationVar(&o.Slice, "slice", 0, "length of the turns that rows take (default 10ms)")
	f.DurationVar(&o.Duration, "duration", 0, "measured time of one sample with --peer (default 300ms; 60ms with --quick)")
}

// parse sets the options that the flags name.
func (t benchFlags) parse(cmd *cobra.Command, o *bench.Options) (err error) {
	switch set := cmd.Flags().Changed; { // 0 in Options selects the default
	case set("rounds") && o.Rounds == 0:
		return errors.New("invalid rounds 0: want 1 or more")
	case set("duration") && o.Duration == 0:
		return errors.New("invalid duration 0s: want 10ms or more")
	case set("slice") && o.Slice == 0:
		return errors.New("invalid slice 0s: want 1ms or more")
	case set("time") && o.Time == 0:
		return errors.New("invalid time 0s: want more than 0")
	}
	if o.Peer, err = t.peer.options(cmd.Context()); err != nil {
		return err
	}
	if t.wireRate != "" {
		if o.WireRate, err = lab.ParseRate(t.wireRate); err != nil {
			return fmt.Errorf("--wire-rate: %w", err)
		}
	}
	if t.until != "" {
		if o.Until, err = parsePercent(t.until); err != nil {
			return fmt.Errorf("--until: %w", err)
		}
	}
	if t.cpus != "" {
		if o.CPUs, err = host.ParseCPUs(t.cpus); err != nil {
			return err
		}
		if o.Peer != nil {
			o.Peer.CPU = o.CPUs.Server
		}
	}
	return nil
}

// parsePercent returns a positive percentage, such as 0.5%, as a share.
func parsePercent(text string) (float64, error) {
	number, ok := strings.CutSuffix(text, "%")
	value, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(value > 0 && value < 100) {
		return 0, fmt.Errorf("invalid percentage %q: want such as 0.5%%", text)
	}
	return value / 100, nil
}

// runBench measures suites in a new directory below out, and prints the result.
func (c *config) runBench(cmd *cobra.Command, o bench.Options, out, format string) (err error) {
	if err := o.Validate(); err != nil {
		return usage(err)
	}
	if err := requireRoot(cmd); err != nil {
		return err
	}
	store, err := c.reaped()
	if err != nil {
		return err
	}
	o.Store = store
	if o.Out, err = rundir.Create(out, time.Now(), rundir.SudoUser(c.getenv)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Out.Close()) }()
	o.Progress = bench.NewProgress(c.stderr, c.terminal)
	file, err := bench.Run(cmd.Context(), o)
	if err != nil && !errors.Is(err, bench.ErrInterrupted) {
		return err
	}
	if format == "json" {
		data, encodeErr := result.Marshal(file)
		if encodeErr != nil {
			return errors.Join(err, encodeErr)
		}
		if _, writeErr := c.stdout.Write(data); writeErr != nil {
			return errors.Join(err, writeErr)
		}
		return errors.Join(err, failures(file))
	}
	r, reportErr := report.New(file)
	if reportErr != nil {
		return errors.Join(err, reportErr)
	}
	results := filepath.Join(o.Out.Path, rundir.Results)
	return errors.Join(err, c.writePage(results, r), c.printReport(r, results, format), failures(file))
}

// failures returns an error if a row failed.
func failures(file result.File) error {
	n := 0
	for _, row := range file.Rows {
		if row.Status == result.StatusFailed {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d rows failed", n, len(file.Rows))
}

// rowJSON is a row of bench --list -o json.
type rowJSON struct {
	Suite    string `json:"suite"`
	ID       string `json:"id"`
	Workload string `json:"workload"`
	Flows    int    `json:"flows"`
	Link     string `json:"link"`
	Datapath string `json:"datapath"`
	Target   string `json:"target"`
	Via      string `json:"via"`
	Status   string `json:"status"`
	Reason   string `json:"reason,omitempty"`
}

// listRows lists the rows of suites. As root it probes whether this machine can build
// their networks.
func (c *config) listRows(o bench.Options, format string) error {
	list := []rowJSON{}
	var rows [][]string
	for _, suite := range o.Suites {
		var unsupported map[string]error
		if os.Geteuid() == 0 {
			unsupported = suite.Probe()
		}
		for _, row := range suite.Rows() {
			item := rowJSON{
				Suite: suite.Name, ID: row.ID, Workload: row.Workload, Flows: row.Key().Flows,
				Link: row.Link, Datapath: row.Datapath, Target: row.Target, Via: row.Via, Status: result.StatusOK,
			}
			if err := unsupported[row.ID]; err != nil {
				item.Status, item.Reason = result.StatusSkipped, err.Error()
			}
			list = append(list, item)
			rows = append(rows, []string{item.Suite, item.ID, item.Workload, strconv.Itoa(item.Flows), item.Link, item.Datapath,
				item.Target, item.Via, item.Status, item.Reason})
		}
	}
	if format == "json" {
		return printJSON(c.stdout, struct {
			Schema int       `json:"schema"`
			Rows   []rowJSON `json:"rows"`
		}{schema, list})
	}
	return printTable(c.stdout, []string{"SUITE", "ROW", "WORKLOAD", "FLOWS", "LINK", "DATAPATH", "TARGET", "VIA", "STATUS", "REASON"}, rows)
}

// suiteList returns a line for each suite.
func suiteList() string {
	var b strings.Builder
	for _, suite := range suites.List() {
		fmt.Fprintf(&b, "  %-11s %s\n", suite.Name, suite.Doc)
	}
	fmt.Fprintf(&b, "  %-11s all of them, one after the other\n", suites.All)
	return b.String()
}

// loadAgent is the command that bench starts in pods and on other machines.
func (c *config) loadAgent() *cobra.Command {
	return hidden(load.Command, "Send or receive load, with commands on stdin (started by bench)", func(ctx context.Context, args []string) error {
		if err := load.DisablePreemption(); err != nil {
			return err
		}
		return worker.Main(ctx, args, c.stdin, c.stdout)
	})
}
