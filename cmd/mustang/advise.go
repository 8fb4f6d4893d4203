// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/advise"
	"mustang/internal/bench"
	"mustang/internal/bench/clusterbench"
	"mustang/internal/bench/suites"
	"mustang/internal/cgroup"
	"mustang/internal/result"
)

const (
	adviseTime, leastAdvise, adviseMargin = 4 * time.Minute, time.Minute, 30 * time.Minute
	adviseLabsCommand                     = "advise-labs"
)

// advice are the flags of mustang advise.
type advice struct {
	where                clusterbench.Options
	link, proxy, overlay string
	time                 time.Duration
	out, name, format    string
}

func (c *config) advise() *cobra.Command {
	var a advice
	cmd := &cobra.Command{
		Use:   "advise",
		Short: "Predict what Mustang would give a Kubernetes cluster, and what would break",
		Long: `Measure pod IPs and Services of a Kubernetes cluster with any network. Then measure the same paths,
and Mustang's, in labs on one of its nodes. Predict the figures after three changes: Mustang as the
whole network, Mustang in place of kube-proxy only, and kube-proxy's nftables mode only. List the
features in use that Mustang lacks.

The network, its overlay and kube-proxy's mode are read from the API server. If they are unknown there,
set flags. The command makes one namespace with Jobs, one of them privileged, and removes it, also
after Ctrl-C. It changes nothing else.`,
		Example: `  mustang advise
  mustang advise --context staging --nodes worker-1,worker-2 --time 10m
  mustang advise --link bridge --proxy nftables --overlay vxlan -o json`,
		Args: cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := checkNodes(a.where.Nodes)
			switch {
			case err != nil:
			case a.time < leastAdvise:
				err = fmt.Errorf("--time %v: want %v or more", a.time, leastAdvise)
			case a.out == "":
				err = errors.New("--out: empty: want a directory")
			}
			if err != nil {
				return cli.Usage(err)
			}
			if err := checkAccess(a.where.Access); err != nil {
				return err
			}
			return c.runAdvise(cmd, a)
		},
	}
	f := cmd.Flags()
	addCluster(f, &a.where)
	f.Var(cli.OneOf(&a.link, "auto", "bridge", "veth"), "link", "the pods' links, if the network is unknown: bridge or veth")
	f.Var(cli.OneOf(&a.proxy, "auto", "iptables", "nftables", "ipvs", "none"), "proxy",
		"mode of kube-proxy, if ConfigMap kube-system/kube-proxy is not there: iptables, nftables, ipvs or none")
	f.Var(cli.OneOf(&a.overlay, "auto", "vxlan", "none"), "overlay", "what joins the nodes, if it is unknown: vxlan or none")
	f.DurationVar(&a.time, "time", adviseTime, "time to measure: half of it in the cluster, half in labs")
	f.StringVar(&a.out, "out", "mustang-results", "directory that the run's directory is made in")
	f.Var(cli.One(&a.name, parseRunName, "letters, digits, _ - and ., and not latest"), "name",
		"name of the run's directory (default: the time of its start)")
	cli.AddFormats(cmd, &a.format, "text", "json")
	return cmd
}

func (c *config) runAdvise(cmd *cobra.Command, a advice) error {
	read, err := a.where.Access.Reader()
	if err != nil {
		return err
	}
	cluster, err := advise.Read(cmd.Context(), read)
	if err != nil {
		return err
	}
	known := func(word string) string {
		if word == "auto" {
			return ""
		}
		return word
	}
	if err := cluster.Choose(known(a.link), known(a.proxy), known(a.overlay)); err != nil {
		return err
	}
	out := advise.Advice{Schema: advise.AdviceSchema, Cluster: cluster}
	model, err := cluster.Model()
	if err != nil {
		out.Unpredicted = append(out.Unpredicted, err.Error())
	} else {
		out.Model, a.where.Lab = &model, true
	}
	if err := c.measureAdvice(cmd, a, &out); err != nil {
		return err
	}
	if a.format == "json" {
		return cli.PrintJSON(c.Stdout, out)
	}
	return out.Write(cli.PrintableLines(c.Stdout), func(header []string, rows [][]any) error {
		return cli.PrintTable(c.Stdout, header, rows)
	})
}

// measureAdvice measures the cluster, then labs on one of its nodes, and adds the predictions. It writes the advice
// and the labs' results beside the cluster's.
func (c *config) measureAdvice(cmd *cobra.Command, a advice, out *advise.Advice) (err error) {
	progress := bench.NewProgress(c.Stderr, c.Terminal)
	a.where.Note = func(text string) { progress.Note(cli.Printable(text)) }
	a.where.Longest = 2*a.time + adviseMargin
	up, err := clusterbench.Up(cmd.Context(), a.where)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, up.Close()) }()
	now, path, err := c.measure(cmd, bench.Options{Cluster: up, Suites: []suites.Suite{up.Suite()},
		Only: []string{advise.PodIP, advise.ClusterIP}, Time: a.time / 2}, a.out, a.name)
	if err != nil {
		return err
	}
	var labs result.File
	if out.Model != nil {
		if labs, err = c.runLabs(cmd.Context(), up, *out.Model, a.time/2); err != nil {
			out.Unpredicted = append(out.Unpredicted, "labs on a node: "+err.Error())
		}
	}
	out.Rows, out.Unpredicted = advise.Predict(now, labs), append(out.Unpredicted, advise.Skipped(now, labs)...)
	if len(labs.Rows) > 0 && !slices.ContainsFunc(out.Rows, func(r advise.Row) bool {
		_, ok := r.Predicted[advise.WholeNetwork]
		return ok
	}) {
		out.Unpredicted = append(out.Unpredicted, "labs had too little time for intervals: set a longer --time")
	}
	out.Notes = append(advise.Notes("Cluster", now), advise.Notes("Labs", labs)...)
	if err := cmd.Context().Err(); err != nil {
		return err
	}
	files := map[string]any{"advice.json": out}
	if len(labs.Rows) > 0 {
		files["labs.json"] = labs
	}
	for name, content := range files {
		data, err := json.MarshalIndent(content, "", "  ")
		if err == nil {
			err = result.SudoUser(c.Getenv).WriteFile(filepath.Join(filepath.Dir(path), name), append(data, '\n'))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// runLabs measures labs in their pod, and returns the results.
func (c *config) runLabs(ctx context.Context, up *clusterbench.Cluster, m advise.Model, limit time.Duration) (
	file result.File, err error) {
	text, err := json.Marshal(m)
	if err != nil {
		return file, err
	}
	var stdout, stderr bytes.Buffer
	told := io.MultiWriter(cli.PrintableLines(c.Stderr), &stderr)
	if err := up.RunLab(ctx, &stdout, told, adviseLabsCommand, string(text), limit.String()); err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return file, fmt.Errorf("%w: %s", err, strings.TrimPrefix(lines[len(lines)-1], "mustang: "))
	}
	return file, json.Unmarshal(stdout.Bytes(), &file)
}

// adviseLabs is the hidden command that runs in the pod of labs.
func (c *config) adviseLabs() *cobra.Command {
	var groups bool
	cmd := &cobra.Command{
		Use: adviseLabsCommand + " MODEL TIME", Short: "Measure the labs of an advice", Hidden: true,
		Args: cli.Arguments("MODEL", "TIME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var m advise.Model
			limit, err := time.ParseDuration(args[1])
			if err = errors.Join(err, json.Unmarshal([]byte(args[0]), &m)); err != nil {
				return cli.Usage(err)
			}
			root, noRoot := cgroup.Root()
			c.groupless = noRoot != nil || cgroup.IsWhole(root) && !groups // of the node
			// A quick run neither traces packets nor times programs, which would concern the whole kernel of the node.
			o := bench.Options{Suites: []suites.Suite{suites.Advice(m, c.groupless)}, Time: limit, Quick: true}
			file, _, err := c.measure(cmd, o, filepath.Join(c.stateDir, "results"), "")
			if err == nil {
				err = c.printResults(file)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&groups, "groups", false, "make control groups on a machine whose groups this process sees")
	return cmd
}
