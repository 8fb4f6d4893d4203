// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"mustang/internal/bench"
	"mustang/internal/lab"
	"mustang/internal/report"
	"mustang/internal/result"
	"mustang/internal/traffic"
)

func (c *config) bench() *cobra.Command {
	var o bench.Options
	var format string
	var list, guest bool
	var texts benchTexts
	cmd := &cobra.Command{
		Use:   "bench [SUITE]",
		Short: "Measure which way of connecting pods is the fastest on this machine",
		Long: `Build the networks of a suite in namespaces of their own, measure them side by side
in interleaved rounds, and prove by counters that traffic took the path that each row
claims. The suites:

` + suiteList() + `
results.json in the output directory grows with each sample; Ctrl-C keeps what
is done. The machine's own network, firewall and sysctls are not touched.

With --vm the same runs in a virtual machine with Debian's newest 6.12 kernel, which has
all link modes. There instructions are counted, not time: instructions per packet and per
transaction, which repeat from run to run and say nothing of caches or parallelism.

With --peer the server is another machine. Ways from this machine itself are measured;
with --uplink also those from a pod (suite latency), by a macvlan device on the uplink,
which is not changed itself. The pod and its host then need an address of the uplink's
network each, and the peer one in it.

Exit code 1 if a row failed.`,
		Example: `  mustang bench pod-links
  mustang bench all --quick
  mustang bench pod-links --quick -o json
  mustang bench switching --wire-rate 10gbit
  mustang bench cni --only bridge --only mustang-veth
  mustang bench latency --peer 10.0.0.1 --token-file token
  mustang bench latency --peer 10.0.0.1 --token-file token --uplink eth1 --uplink-addresses 10.0.0.50/24,10.0.0.51/24
  mustang bench pod-links --only veth --only 'veth+ebpf' --rounds 20 --out results
  mustang bench --vm pod-links --only ipvlan-l2 --only 'ipvlan-l2+ebpf'
  mustang bench --list all`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(format); err != nil {
				return err
			}
			name := bench.DefaultSuite
			if len(args) == 1 {
				name = args[0]
			}
			var err error
			if o.Suites, err = bench.LookupSuites(name); err != nil {
				return usage(err)
			}
			if err := texts.into(&o); err != nil {
				return usage(err)
			}
			switch {
			case guest:
				return c.benchVM(cmd, o)
			case list:
				return c.listRows(o, format)
			}
			return c.runBench(cmd, o, format)
		},
	}
	addOutput(cmd, &format)
	cmd.AddCommand(c.benchServe())
	f := cmd.Flags()
	f.IntVar(&o.Rounds, "rounds", 0, "how often each row is measured (default 10; 6 with --quick)")
	f.DurationVar(&o.Duration, "duration", 0, "measured time of one sample (default 300ms; 60ms with --quick); suite cni counts calls instead")
	f.StringArrayVar(&o.Only, "only", nil, "measure only rows with this ID, beginning or pattern; repeat for more")
	f.BoolVar(&list, "list", false, "list the rows and whether this machine can measure them")
	f.StringVar(&o.Out, "out", "mustang-results", "directory for results.json")
	f.BoolVar(&o.Quick, "quick", false, "take about a minute for each suite: not for claims")
	f.StringVar(&texts.peer, "peer", "", "address of another machine that runs mustang bench serve: measure the way to it")
	f.StringVar(&texts.tokenFile, "token-file", "", "file with the token of the peer")
	texts.uplink.add(f, "with --peer")
	f.StringVar(&texts.wireRate, "wire-rate", "", "rate of the wire between two hosts, such as 10gbit (default: what the kernel can do)")
	f.DurationVar(&o.WireDelay, "wire-delay", 0, "delay of the wire between two hosts in each direction, where the kernel can (netem)")
	f.StringVar(&texts.cpus, "cpus", "", "CPUs that client and server are pinned to, such as 0,1 (default: both on the first)")
	f.BoolVar(&guest, "vm", false, "run in a virtual machine with a stock kernel, and count instructions instead of time")
	f.StringVar(&o.Count, "count", "", "instructions: count these, on a machine whose clock does (--vm sets it)")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of the order of rows (default: a random one, printed)")
	return cmd
}

// benchTexts are flags that have to be read.
type benchTexts struct {
	cpus, wireRate, peer, tokenFile string
	uplink                          uplinkFlags
}

// into puts what the flags say into options.
func (t benchTexts) into(o *bench.Options) (err error) {
	if t.peer != "" || t.tokenFile != "" {
		if o.Peer, err = readPeer(t.peer, t.tokenFile); err != nil {
			return err
		}
	}
	switch {
	case !t.uplink.given():
	case o.Peer == nil:
		return errors.New("--uplink and --uplink-addresses need --peer")
	default:
		if o.Peer.Uplink, err = t.uplink.parent(); err != nil {
			return err
		}
	}
	if t.wireRate != "" {
		if o.WireRate, err = lab.ParseRate(t.wireRate); err != nil {
			return fmt.Errorf("wire-rate: %w", err)
		}
	}
	if t.cpus != "" {
		o.CPUs, err = bench.ParseCPUs(t.cpus)
	}
	return err
}

// guestFlags are those that concern this machine, and not the guest.
var guestFlags = []string{"vm", "out", "count", "state-dir", "bpf-root"}

// benchVM runs the same command line in a guest. What makes no sense is refused
// before one is started.
func (c *config) benchVM(cmd *cobra.Command, o bench.Options) error {
	o.Count = result.ClockInstructions
	if err := o.Validate(); err != nil {
		return usage(err)
	}
	if err := requireRoot(cmd); err != nil {
		return err
	}
	args := []string{cmd.Flags().Arg(0)}
	if args[0] == "" {
		args[0] = bench.DefaultSuite
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			if !slices.Contains(guestFlags, f.Name) {
				args = append(args, "--"+f.Name+"="+value)
			}
		}
	})
	return c.benchInGuest(cmd.Context(), args, o.Out)
}

func (c *config) runBench(cmd *cobra.Command, o bench.Options, format string) error {
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
	} else if printErr := report.Table(c.stdout, file, c.tableOptions()); printErr != nil {
		return errors.Join(err, printErr)
	}
	fmt.Fprintf(c.stderr, "results: %s; for a page with charts: mustang report %s\n", filepath.Join(o.Out, bench.ResultsName), o.Out)
	return errors.Join(err, failures(file))
}

// tableOptions fits tables to the terminal; what goes elsewhere is not cut.
func (c *config) tableOptions() report.TableOptions {
	file, ok := c.stdout.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return report.TableOptions{}
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		width = 0
	}
	return report.TableOptions{Width: width, Color: c.getenv("NO_COLOR") == ""}
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

// rowJSON is a row as bench --list -o json prints it.
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

func (c *config) listRows(o bench.Options, format string) error {
	list := []rowJSON{}
	var rows [][]string
	for _, suite := range o.Suites {
		lacking := map[string]error{}
		for _, row := range suite.Rows() {
			missing, tried := lacking[row.ID]
			if !tried && os.Geteuid() == 0 { // only root can try
				missing = suite.Missing(row.ID)
				lacking[row.ID] = missing
			}
			item := rowJSON{
				Suite: suite.Name, ID: row.ID, Workload: row.Workload, Flows: row.Key().Flows,
				Link: row.Link, Datapath: row.Datapath, Target: row.Target, Via: row.Via, Status: result.StatusOK,
			}
			if missing != nil {
				item.Status, item.Reason = result.StatusSkipped, missing.Error()
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

// suiteList is a line for each suite.
func suiteList() string {
	var b strings.Builder
	for _, suite := range bench.Suites() {
		fmt.Fprintf(&b, "  %-11s %s\n", suite.Name, suite.Doc)
	}
	fmt.Fprintf(&b, "  %-11s all of them, one after the other\n", bench.All)
	return b.String()
}

// trafficAgentName is what traffic.StartAgent calls.
const trafficAgentName = "traffic-agent"

// trafficAgent is the command that bench starts in pods.
func (c *config) trafficAgent() *cobra.Command {
	return &cobra.Command{
		Use:                trafficAgentName,
		Short:              "Make or take load as told on stdin (started by bench)",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return traffic.Main(cmd.Context(), args, c.stdin, c.stdout)
		},
	}
}
