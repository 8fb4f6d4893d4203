// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
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

func (c *config) bench() *cobra.Command {
	var o bench.Options
	var list, guest, selfTest bool
	var flags benchFlags
	cmd := &cobra.Command{
		Use:   "bench [SUITE...]",
		Short: "Measure which way of connecting pods is the fastest on this machine",
		Long: `Build the networks of a suite in network namespaces, and measure them side by side in
interleaved rounds. Counters prove that traffic took the path that each row claims. Suites (pod-links
if none is named):

` + suiteList() + `
A suite measures its usual rows, which answer its question, or with --all every row that it
has. --only selects among all of them.

Each run makes a directory in the output directory, named by --name or its start in UTC, with
results.json and report.html; "latest" links to the last one. Ctrl-C keeps the samples so far. The
machine's own network, firewall and sysctls are not changed.

With --vm the suite runs in a virtual machine with Debian's newest 6.12 kernel, which has
all link modes. There bench counts instructions per packet and per transaction.

With --peer the server runs on another machine: the command (ssh, kubectl exec -i, nsenter) starts
mustang there over standard input and output. It is split into words with the quoting rules of a
shell, but no shell runs. Only rows from host to host are measured; with --uplink, also rows of suite
latency from a pod, with a macvlan device on the uplink.

The exit code is 1 if a row failed.`,
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
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.Suites, err = lookupSuites(args); err != nil {
				return cli.Usage(err)
			}
			if selfTest {
				err = checkSelfTest(cmd, args)
				o.Suites = suites.SelfTest()
			} else {
				o.Suites, err = flags.traffic.Apply(o.Suites)
			}
			if err == nil {
				err = flags.parse(cmd, &o)
			}
			switch {
			case err != nil:
				return cli.Usage(err)
			case guest:
				return c.benchVM(cmd, o, flags.out)
			case list:
				return c.listRows(o, flags.format)
			case selfTest:
				return c.runSelfTest(cmd, o, flags)
			}
			return c.runBench(cmd, o, flags)
		},
	}
	flags.add(cmd, &o)
	flags.addLabs(cmd.Flags(), &o)
	f := cmd.Flags()
	f.BoolVar(&list, "list", false, "list the rows that the same command would measure, and whether this machine can")
	f.BoolVar(&selfTest, "self-test", false,
		"test the measurement itself: paths that are the same, and differences of known size")
	f.BoolVar(&guest, "vm", false, "run in a virtual machine with a stock kernel, and count instructions")
	completeBench(cmd)
	cmd.AddCommand(c.benchCluster())
	return cmd
}

func lookupSuites(names []string) ([]suites.Suite, error) {
	if len(names) == 0 {
		names = []string{suites.Default}
	}
	for _, name := range names {
		switch known := suites.Names(); {
		case name == suites.ClusterName:
			return nil, fmt.Errorf("not a suite: %s is a command: mustang bench %s", name, name)
		case !slices.Contains(known, name):
			hint := suggest.Text(name, append(slices.Clone(known), suites.ClusterName))
			usual, _ := suites.Lookup(suites.Default)
			if _, err := (bench.Options{Suites: usual, Only: []string{name}}).Rows(); err == nil {
				hint = "; did you mean --only " + name + "?"
			}
			return nil, fmt.Errorf("unknown suite %q: want %s; or the command %s%s", name, strings.Join(known, ", "),
				suites.ClusterName, hint)
		}
	}
	return suites.Lookup(names...)
}

type benchFlags struct {
	cpus, out, format, name string
	engines                 []string
	peer                    peerFlags
	traffic                 suites.Traffic
}

// add adds the flags of all benches: for the rows to measure, their traffic, the number of samples, and the output.
func (t *benchFlags) add(cmd *cobra.Command, o *bench.Options) {
	f := cmd.Flags()
	f.StringArrayVar(&o.Only, "only", nil,
		"measure only these rows: an ID, the beginning of IDs up to a slash, or a pattern in which * and ? match no slash "+
			"(repeatable)")
	f.DurationVar(&o.Time, "time", 0, "time of each suite (default 2m50s; 30s with --quick)")
	f.IntVar(&o.Rounds, "rounds", 0, "samples of each row, in place of --time")
	f.Var(cli.One(&o.Until, parsePercent, "a percentage, such as 5%"), "until",
		"end a suite when all intervals are this narrow, such as 0.5%, or --time is over (default then 10m)")
	f.BoolVar(&o.Quick, "quick", false,
		"a test of half a minute, not for comparing: four rows and two workloads of pod-links; other suites take longer")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of the order of rows (default: random, and printed)")
	f.DurationVar(&o.Slice, "slice", 0,
		"how long a connection carries load before the next one's turn (default 1ms, and longer where a path needs it)")
	f.StringArrayVar(&t.traffic.Workloads, "workload", nil, "measure this in place of the suite's workloads: "+
		strings.Join(load.Workloads(), ", ")+" (repeatable)")
	f.IntVarP(&t.traffic.Flows, "flows", "P", 0, "connections of a stream (default: the suite's)")
	f.IntVar(&t.traffic.Request, "request-size", 0, "bytes in a request (default 1; 24 over UDP)")
	f.IntVar(&t.traffic.Response, "response-size", 0, "bytes in a response (default 1; 24 over UDP)")
	f.StringVar(&t.traffic.Direction, "direction", "", "direction of TCP streams: forward (default), reverse or both")
	f.BoolVar(&t.traffic.UnderLoad, "latency-under-load", false,
		"also measure the latency of requests that are sent at a fixed rate")
	f.IntVar(&t.traffic.Rate, "rate", 0, "with --latency-under-load: requests per second (default half of each row's own)")
	cli.AddOutput(cmd, &t.format)
	f.StringVar(&t.out, "out", "mustang-results", "directory that the run's directory is made in")
	f.Var(cli.One(&t.name, parseRunName, "letters, digits, _ - and ., and not latest"), "name",
		"name of the run's directory, which compare shows (default: the time of its start)")
}

func (t *benchFlags) addLabs(f *pflag.FlagSet, o *bench.Options) {
	f.BoolVar(&o.All, "all", false, "measure all rows of a suite, not only the usual ones, which answer its question")
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
	t.peer.add(f)
	f.StringSliceVar(&t.engines, "engine", []string{engine.Native},
		"load generators beside the native one: iperf3, netperf, sockperf (repeatable)")
}

func (t benchFlags) parse(cmd *cobra.Command, o *bench.Options) (err error) {
	for name, least := range map[string]string{ // 0 in Options selects the default
		"rounds": "1 or more", "duration": "10ms or more", "slice": "1ms or more", "time": "more than 0",
		"flows": "1 or more", "rate": "1 or more", "request-size": "1 or more", "response-size": "1 or more",
	} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed && slices.Contains([]string{"0", "0s"}, f.Value.String()) {
			return fmt.Errorf("%s %s: want %s", flagName(f), f.Value, least)
		}
	}
	if (cmd.Flags().Changed("vm") || o.Count != "") && t.traffic.Set() {
		return errors.New("the traffic of counted instructions is fixed: --vm takes no --workload, --flows, sizes, " +
			"--direction and --latency-under-load")
	}
	var engines []engine.Engine // beside the native one
	for i, name := range t.engines {
		if name == engine.Native || slices.Contains(t.engines[:i], name) {
			continue
		}
		e, err := engine.Lookup(name)
		if err != nil {
			return fmt.Errorf("--engine: %w", err)
		}
		engines = append(engines, e)
	}
	if len(engines) > 0 {
		if o.Suites, err = suites.Beside(o.Suites, engines); err != nil {
			return fmt.Errorf("--engine: %w", err)
		}
	}
	if o.Peer, err = t.peer.options(cmd); err != nil || t.cpus == "" {
		return err
	}
	o.CPUs, err = host.ParseCPUs(t.cpus)
	if o.Peer != nil {
		o.Peer.CPU = o.CPUs.Server
	}
	return err
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

func parseRunName(name string) (string, error) {
	if !regexp.MustCompile(`^\w[\w.-]*$`).MatchString(name) || name == result.LatestName {
		return "", errors.New("not a name")
	}
	return name, nil
}

// measure measures suites in a new directory below out. It returns a result also with [bench.ErrInterrupted].
func (c *config) measure(cmd *cobra.Command, o bench.Options, out, name string) (
	file result.File, path string, err error) {
	if out == "" {
		return file, "", cli.Usage(errors.New(`--out "": want a directory`))
	}
	if err := o.Validate(); err != nil {
		return file, "", cli.Usage(err)
	}
	if o.Cluster == nil {
		if o.Store, err = c.rootStore(cmd); err != nil {
			return file, "", err
		}
	}
	if o.Out, err = result.CreateDir(out, name, time.Now(), result.SudoUser(c.Getenv)); err != nil {
		return file, "", err
	}
	defer func() { err = errors.Join(err, o.Out.Close()) }()
	o.Progress = bench.NewProgress(c.Stderr, c.Terminal)
	file, err = bench.Run(cmd.Context(), o)
	return file, filepath.Join(o.Out.Path, result.FileName), err
}

func (c *config) runBench(cmd *cobra.Command, o bench.Options, flags benchFlags) error {
	file, path, err := c.measure(cmd, o, flags.out, flags.name)
	if err != nil && (!errors.Is(err, bench.ErrInterrupted) || len(file.Rows) == 0) {
		return err
	}
	if flags.format == "json" {
		err = errors.Join(err, c.printResults(file))
	}
	r, reportErr := report.New(file)
	if reportErr != nil {
		return errors.Join(err, reportErr)
	}
	err = errors.Join(err, c.writePage(path, r))
	if flags.format != "json" {
		err = errors.Join(err, c.printReport(r, path, flags.format))
	}
	failed := 0
	for _, row := range file.Rows {
		if row.Status == result.StatusFailed {
			failed++
		}
	}
	if failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d rows failed", failed, len(file.Rows)))
	}
	return err
}

func suiteList() string {
	var b strings.Builder
	all := suites.Suite{Name: suites.All, Doc: "all of them, one after the other"}
	for _, suite := range append(suites.Summaries(), all) {
		fmt.Fprintf(&b, "  %-14s  %s\n", suite.Name, suite.Doc)
	}
	return b.String()
}

func completeBench(cmd *cobra.Command) {
	cmd.ValidArgsFunction = cli.Words(suites.Names)
	cli.CompleteFlag(cmd, "workload", load.Workloads)
	cli.CompleteFlag(cmd, "direction", cli.Fixed("forward", "reverse", "both"))
	engines := cli.Convert(engine.List(), func(e engine.Engine) string { return e.Name })
	cli.CompleteFlag(cmd, "engine", cli.Fixed(append([]string{engine.Native}, engines...)...))
	cli.CompleteFlag(cmd, "only", func() []string { return rowIDs(cmd.Flags().Args()...) })
}

// rowIDs returns the IDs of the rows of suites, by default of the usual suite. Unknown suites are ignored.
func rowIDs(names ...string) (ids []string) {
	if len(names) == 0 {
		names = []string{suites.Default}
	}
	list, _ := suites.Lookup(names...)
	for _, s := range list {
		for _, p := range s.Paths {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

// notInSelfTest are the flags that make no sense in a self-test.
const notInSelfTest = "only all engine peer vm count wire-rate wire-delay quick workload flows request-size " +
	"response-size direction latency-under-load rate"

func checkSelfTest(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("--self-test has suites of its own, not %q", args[0])
	}
	for _, name := range strings.Fields(notInSelfTest) {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--self-test and --%s exclude each other", name)
		}
	}
	return nil
}

// runSelfTest measures known differences, and prints whether the measurement found them.
func (c *config) runSelfTest(cmd *cobra.Command, o bench.Options, flags benchFlags) error {
	file, path, err := c.measure(cmd, o, flags.out, flags.name)
	if err != nil {
		return err
	}
	checks := bench.JudgeSelftest(file)
	err = cli.PrintList(c.Stdout, flags.format, checks, cli.Table[bench.SelftestCheck]{
		Key:    "checks",
		Header: []string{"CHECK", "WANT", "FOUND", "STATUS"},
		Row:    func(c bench.SelftestCheck) []any { return []any{c.Name, c.Want, c.Found, c.Status} },
	})
	if err == nil && flags.format != "json" {
		_, err = fmt.Fprintln(c.Stdout, "Results:", path)
	}
	for _, check := range checks {
		if check.Status == bench.Failed {
			err = errors.Join(err, fmt.Errorf("self-test: %s: want %s, found %s", check.Name, check.Want, check.Found))
		}
	}
	return err
}
