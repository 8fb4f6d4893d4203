// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/bench"
	"mustang/internal/bench/engine"
	"mustang/internal/bench/host"

	"mustang/internal/bench/suites"
	"mustang/internal/load"
	"mustang/internal/qdisc"
	"mustang/internal/report"
	"mustang/internal/result"
	"mustang/internal/suggest"
)

// benchHelp is the help of bench.
func benchHelp() string {
	return `Build the networks of a suite in network namespaces, and measure them side by side in
interleaved rounds. Counters prove that traffic took the path that each row claims. Suites (pod-links
if none is named):

` + suiteList() + `
A suite measures its usual rows, which answer its question, or with --all every row that it
has. --only selects among all of them.

Each run makes a directory in the output directory, named by its start in UTC, with results.json
and report.html; "latest" links to the last one. Ctrl-C keeps the samples so far. The machine's own
network, firewall and sysctls are not changed.

With --vm the suite runs in a virtual machine with Debian's newest 6.12 kernel, which has
all link modes. There bench counts instructions per packet and per transaction.

With --peer the server runs on another machine: the command (ssh, kubectl exec -i, nsenter) starts
mustang there over standard input and output. It is split into words with the quoting rules of a
shell, but no shell runs. Only rows from host to host are measured; with --uplink, also rows of suite
latency from a pod, with a macvlan device on the uplink.

The exit code is 1 if a row failed.`
}

// bench is the command that measures suites.
func (c *config) bench() *cobra.Command {
	var o bench.Options
	var list, guest, selfTest bool
	var flags benchFlags
	cmd := &cobra.Command{
		Use:   "bench [SUITE...]",
		Short: "Measure which way of connecting pods is the fastest on this machine",
		Long:  benchHelp(),
		Example: `  mustang bench pod-links
  mustang bench latency switching --time 1m
  mustang bench all --quick
  mustang bench pod-links --quick -o json
  mustang bench switching --wire-rate 10gbit
  mustang bench pod-links --workload udp_rr --workload tcp_stream -P 4 --direction both
  mustang bench pod-links --workload tcp_rr --latency-under-load
  mustang bench cni --only bridge --only mustang-veth
  mustang bench latency --peer 'ssh root@10.0.0.1'
  mustang bench latency --peer 'ssh root@10.0.0.1' --uplink eth1 --uplink-addresses 10.0.0.50/24,10.0.0.51/24
  mustang bench latency --peer 'kubectl exec -i server --' --peer-address 10.244.1.7
  mustang bench pod-links --only veth --only 'veth+ebpf' --rounds 20 --out results
  mustang bench --vm pod-links --only ipvlan-l2 --only 'ipvlan-l2+ebpf'
  mustang bench pod-links --all --time 10m
  mustang bench --self-test
  mustang bench --list all`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			names := args
			if len(names) == 0 {
				names = []string{suites.Default}
			}
			var err error
			if o.Suites, err = lookupSuites(names); err != nil {
				return cli.Usage(err)
			}
			if selfTest {
				if err := checkSelfTest(cmd, args); err != nil {
					return cli.Usage(err)
				}
				o.Suites = suites.SelfTest()
			} else if o.Suites, err = flags.traffic.Apply(o.Suites); err != nil {
				return cli.Usage(err)
			}
			if err := flags.parse(cmd, &o); err != nil {
				return cli.Usage(err)
			}
			switch {
			case guest:
				return c.benchVM(cmd, o, flags.out)
			case list:
				return c.listRows(o, flags.format)
			case selfTest:
				return c.runSelfTest(cmd, o, flags.out, flags.format)
			}
			return c.runBench(cmd, o, flags.out, flags.format)
		},
	}
	f := cmd.Flags()
	flags.addSampling(f, &o)
	flags.addLabs(f, &o)
	flags.addTraffic(f)
	flags.addOutput(cmd)
	f.BoolVar(&o.All, "all", false, "measure all rows of a suite, not only the usual ones, which answer its question")
	f.BoolVar(&list, "list", false, "list the rows that the same command would measure, and whether this machine can")
	f.BoolVar(&selfTest, "self-test", false,
		"test the measurement itself: paths that are the same, and differences of known size")
	flags.peer.add(f)
	f.BoolVar(&guest, "vm", false, "run in a virtual machine with a stock kernel, and count instructions")
	completeBench(cmd)
	cmd.AddCommand(c.benchCluster())
	return cmd
}

// lookupSuites returns suites by their names. A misspelt cluster means the command.
func lookupSuites(names []string) ([]suites.Suite, error) {
	for _, name := range names {
		switch known := suites.Names(); {
		case name == suites.ClusterName:
			return nil, fmt.Errorf("not a suite: %s is a command: mustang bench %s", name, name)
		case !slices.Contains(known, name):
			hint := suggest.Text(name, append(slices.Clone(known), suites.ClusterName))
			return nil, fmt.Errorf("unknown suite %q: want %s; or the command %s%s", name, strings.Join(known, ", "),
				suites.ClusterName, hint)
		}
	}
	return suites.Lookup(names...)
}

// benchFlags are the flags that need parsing.
type benchFlags struct {
	cpus, out, format string
	engines           []string
	peer              peerFlags
	traffic           suites.Traffic
}

// addOutput adds the flags for the output of the result.
func (t *benchFlags) addOutput(cmd *cobra.Command) {
	cli.AddOutput(cmd, &t.format)
	cmd.Flags().StringVar(&t.out, "out", "mustang-results", "directory that the run's directory is made in")
}

// addTraffic adds the flags for the traffic of the paths.
func (t *benchFlags) addTraffic(f *pflag.FlagSet) {
	f.StringArrayVar(&t.traffic.Workloads, "workload", nil, "measure this in place of the suite's workloads: "+
		strings.Join(load.Workloads(), ", ")+" (repeatable)")
	f.IntVarP(&t.traffic.Flows, "flows", "P", 0, "connections of a stream (default: the suite's)")
	f.IntVar(&t.traffic.Request, "request-size", 0, "bytes in a request (default 1; 24 over UDP)")
	f.IntVar(&t.traffic.Response, "response-size", 0, "bytes in a response (default 1; 24 over UDP)")
	f.StringVar(&t.traffic.Direction, "direction", "", "direction of TCP streams: forward (default), reverse or both")
	f.BoolVar(&t.traffic.UnderLoad, "latency-under-load", false,
		"also measure the latency of requests that are sent at a fixed rate")
	f.IntVar(&t.traffic.Rate, "rate", 0, "that rate in requests per second (default: half of each row's own)")
}

// besideEngines returns suites with the rows of engines, in addition to rows of the native engine.
func besideEngines(all []suites.Suite, names []string) ([]suites.Suite, error) {
	var engines []engine.Engine
	for _, name := range names {
		if name == engine.Native || slices.ContainsFunc(engines, func(e engine.Engine) bool { return e.Name == name }) {
			continue
		}
		e, err := engine.Lookup(name)
		if err != nil {
			return nil, err
		}
		engines = append(engines, e)
	}
	if len(engines) == 0 {
		return all, nil
	}
	return suites.Beside(all, engines)
}

// addSampling adds the flags for the rows to measure and the number of samples.
func (t *benchFlags) addSampling(f *pflag.FlagSet, o *bench.Options) {
	f.StringArrayVar(&o.Only, "only", nil,
		"measure only these rows: an ID, the beginning of IDs up to a slash, or a pattern in which * and ? match no slash "+
			"(repeatable)")
	f.DurationVar(&o.Time, "time", 0, "time of each suite (default 2m50s; 30s with --quick)")
	f.IntVar(&o.Rounds, "rounds", 0, "samples of each row, in place of --time")
	f.Var(cli.One(&o.Until, parsePercent, "a percentage, such as 5%"), "until",
		"end a suite when all intervals are this narrow, such as 0.5%, or --time is over (default then 10m)")
	f.BoolVar(&o.Quick, "quick", false,
		"take half a minute: four rows of pod-links and two workloads; other suites longer")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of the order of rows (default: random, and printed)")
	f.DurationVar(&o.Slice, "slice", 0,
		"length of the turns that rows take (default 1ms, and longer where a path needs it)")
}

// addLabs adds the flags for the place and the settings of labs.
func (t *benchFlags) addLabs(f *pflag.FlagSet, o *bench.Options) {
	f.Lookup("rounds").Usage += " (suite cni, --vm and --peer: default 10; 6 with --quick or --vm)"
	f.StringVar(&o.Count, "count", "", "count \"instructions\", on a machine with a clock that counts them (set by --vm)")
	_ = f.MarkHidden("count")
	f.Var(cli.One(&o.WireRate, qdisc.ParseRate, ""), "wire-rate",
		"rate of the wire between two hosts, such as 10gbit (default: unlimited)")
	f.DurationVar(&o.WireDelay, "wire-delay", 0,
		"delay of the wire between two hosts in each direction (needs netem in the kernel)")
	f.StringVar(&t.cpus, "cpus", "",
		"CPUs that client and server are pinned to, such as 0,1 (default: both on the first; none on a peer)")
	f.DurationVar(&o.Duration, "duration", 0,
		"measured time of one sample with --peer (default 300ms; 60ms with --quick) or --engine (default 1s)")
	f.StringSliceVar(&t.engines, "engine", []string{engine.Native},
		"load generators beside the native one: iperf3, netperf, sockperf (repeatable)")
}

// parse sets the options that the flags name.
func (t benchFlags) parse(cmd *cobra.Command, o *bench.Options) (err error) {
	for _, each := range []struct{ flag, least string }{ // 0 in Options selects the default
		{"rounds", "1 or more"}, {"duration", "10ms or more"}, {"slice", "1ms or more"}, {"time", "more than 0"},
		{"flows", "1 or more"},
		{"rate", "1 or more"}, {"request-size", "1 or more"}, {"response-size", "1 or more"},
	} {
		f := cmd.Flags().Lookup(each.flag)
		if f == nil || !f.Changed || f.Value.String() != "0" && f.Value.String() != "0s" {
			continue
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		return fmt.Errorf("%s %s: want %s", name, f.Value, each.least)
	}
	if (cmd.Flags().Changed("vm") || o.Count != "") && t.traffic.Set() {
		return errors.New("the traffic of counted instructions is fixed: --vm takes no --workload, --flows, sizes, " +
			"--direction and --latency-under-load")
	}
	if o.Suites, err = besideEngines(o.Suites, t.engines); err != nil {
		return fmt.Errorf("--engine: %w", err)
	}
	if t.peer.flags != nil {
		if o.Peer, err = t.peer.options(cmd.Context()); err != nil {
			return err
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
		return 0, errors.New("not a percentage")
	}
	return value / 100, nil
}

// measure measures suites in a new directory below out, and returns the result and the path of its file, also with
// [bench.ErrInterrupted].
func (c *config) measure(cmd *cobra.Command, o bench.Options, out string) (file result.File, results string,
	err error) {
	if out == "" {
		return file, "", cli.Usage(errors.New(`--out "": want a directory`))
	}
	if err := o.Validate(); err != nil {
		return file, "", cli.Usage(err)
	}
	if o.Cluster == nil {
		if err := cli.RequireRoot(cmd); err != nil {
			return file, "", err
		}
		if o.Store, err = c.reaped(); err != nil {
			return file, "", err
		}
	}
	if o.Out, err = result.CreateDir(out, time.Now(), result.SudoUser(c.Getenv)); err != nil {
		return file, "", err
	}
	defer func() { err = errors.Join(err, o.Out.Close()) }()
	o.Progress = bench.NewProgress(c.Stderr, c.Terminal)
	file, err = bench.Run(cmd.Context(), o)
	return file, filepath.Join(o.Out.Path, result.FileName), err
}

// runBench measures suites in a new directory below out, and prints the result.
func (c *config) runBench(cmd *cobra.Command, o bench.Options, out, format string) error {
	file, results, err := c.measure(cmd, o, out)
	if err != nil && (!errors.Is(err, bench.ErrInterrupted) || len(file.Rows) == 0) {
		return err
	}
	if format == "json" {
		err = errors.Join(err, c.printResults(file))
	}
	r, reportErr := report.New(file)
	if reportErr != nil {
		return errors.Join(err, reportErr)
	}
	err = errors.Join(err, c.writePage(results, r))
	if format != "json" {
		err = errors.Join(err, c.printReport(r, results, format))
	}
	return errors.Join(err, failures(file))
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

// suiteList returns a line for each suite.
func suiteList() string {
	var b strings.Builder
	width := 0
	for _, suite := range suites.List() {
		width = max(width, len(suite.Name))
	}
	for _, suite := range suites.List() {
		fmt.Fprintf(&b, "  %-*s  %s\n", width, suite.Name, suite.Doc)
	}
	fmt.Fprintf(&b, "  %-*s  all of them, one after the other\n", width, suites.All)
	return b.String()
}
