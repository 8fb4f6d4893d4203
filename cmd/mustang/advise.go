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
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/advise"
	"mustang/internal/bench"
	"mustang/internal/bench/clusterbench"
	"mustang/internal/bench/host"
	"mustang/internal/bench/suites"
	"mustang/internal/result"
)

const (
	adviseTime, leastAdvise, mostAdvise = 4 * time.Minute, time.Minute, 24 * time.Hour
	adviseLabsCommand                   = "advise-labs"
)

// advice are the flags of mustang advise.
type advice struct {
	where                clusterbench.Options
	link, proxy, overlay string
	time                 time.Duration
	out, format          string
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

The network, its overlay and kube-proxy's mode are read from the API server. If the API server does
not have them, set flags. The measured nodes need the image. The command makes one namespace with Jobs, one
of them privileged, and removes it, also after Ctrl-C. It changes nothing else.`,
		Example: `  mustang advise
  mustang advise --context staging --nodes worker-1,worker-2 --time 10m
  mustang advise --link bridge --proxy nftables --overlay vxlan -o json`,
		Args: cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := checkNodes(a.where.Nodes)
			switch {
			case err != nil:
			case a.time < leastAdvise || a.time > mostAdvise:
				err = fmt.Errorf("--time %v: want %v to %v", a.time, leastAdvise, mostAdvise)
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
	f.Var(cli.OneOf(&a.link, "auto", "bridge", "veth", "other"), "link",
		"the pods' links, if the network is unknown: bridge or veth; other: without predictions")
	f.Var(cli.OneOf(&a.proxy, "auto", "iptables", "nftables", "ipvs", "none"), "proxy",
		"mode of kube-proxy, if ConfigMap kube-system/kube-proxy is not there: iptables, nftables, ipvs or none")
	f.Var(cli.OneOf(&a.overlay, "auto", "vxlan", "none"), "overlay", "tunnel between nodes, if unknown: vxlan or none")
	f.DurationVar(&a.time, "time", adviseTime, "time to measure: half of it in the cluster, half in labs")
	f.StringVar(&a.out, "out", "mustang-results", "directory that the run's directory is made in")
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
	if err := cluster.Choose(a.link, a.proxy, a.overlay); err != nil {
		return err
	}
	out := advise.Advice{Schema: advise.AdviceSchema, Cluster: cluster, Rows: []advise.Row{}}
	model, err := cluster.Model()
	if err != nil {
		out.Unpredicted = append(out.Unpredicted, err.Error())
	} else {
		out.Model, a.where.LabAfter = &model, a.time/2
	}
	failed := c.measureAdvice(cmd, a, &out)
	switch {
	case cmd.Context().Err() != nil:
		return failed
	case failed != nil:
		out.Unpredicted = append(out.Unpredicted, "the cluster was not measured")
	case len(out.Rows) == 0:
		failed = errors.New("no path of the cluster was measured")
	}
	if a.format == "json" {
		err = cli.PrintJSON(c.Stdout, out)
	} else {
		err = out.Write(cli.PrintableLines(c.Stdout), func(header []string, rows [][]any) error {
			return cli.PrintTable(c.Stdout, header, rows)
		})
	}
	return errors.Join(err, failed)
}

// measureAdvice measures the cluster, then labs on one of its nodes, and adds the predictions. It writes the advice
// and the labs' results beside the cluster's.
func (c *config) measureAdvice(cmd *cobra.Command, a advice, out *advise.Advice) (err error) {
	progress := bench.NewProgress(c.Stderr, c.Terminal)
	a.where.Note = func(text string) { progress.Note(cli.Printable(text)) }
	a.where.Longest = a.time + clusterMargin
	up, err := clusterbench.Up(cmd.Context(), a.where)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, up.Close()) }()
	now, path, err := c.measure(cmd, bench.Options{Cluster: up, Suites: []suites.Suite{up.Suite()},
		Only: []string{advise.PodIP, advise.ClusterIP}, Time: a.time / 2}, a.out, "")
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	var labs result.File
	if out.Model != nil {
		model, _ := json.Marshal(*out.Model) // words and a number
		if labs, err = c.runLabs(cmd.Context(), up, dir, string(model), (a.time / 2).String()); err != nil {
			out.Unpredicted = append(out.Unpredicted, "labs on a node: "+err.Error())
		}
	}
	out.Predict(now, labs)
	var text bytes.Buffer
	return errors.Join(cmd.Context().Err(), cli.PrintJSON(&text, out),
		result.SudoUser(c.Getenv).WriteFile(filepath.Join(dir, "advice.json"), text.Bytes()))
}

// runLabs runs advise-labs with args in the pod of labs. It returns the results, and writes them into dir.
func (c *config) runLabs(ctx context.Context, up *clusterbench.Cluster, dir string, args ...string) (
	file result.File, err error) {
	var stdout, stderr bytes.Buffer
	progress := io.MultiWriter(cli.PrintableLines(c.Stderr), &stderr)
	if err := up.RunLab(ctx, &stdout, progress, append([]string{adviseLabsCommand}, args...)...); err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		if last := strings.TrimPrefix(lines[len(lines)-1], "mustang: "); last != "" {
			err = fmt.Errorf("%w: %s", err, last)
		}
		return file, err
	}
	err = json.Unmarshal(stdout.Bytes(), &file)
	return file, errors.Join(err, result.SudoUser(c.Getenv).WriteFile(filepath.Join(dir, "labs.json"), stdout.Bytes()))
}

// adviseLabs is the hidden command that runs in the pod of labs.
func (c *config) adviseLabs() *cobra.Command {
	return &cobra.Command{
		Use: adviseLabsCommand + " MODEL TIME", Short: "Measure the labs of an advice", Hidden: true,
		Args: cli.Arguments("MODEL", "TIME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var m advise.Model
			limit, err := time.ParseDuration(args[1])
			if err = errors.Join(err, json.Unmarshal([]byte(args[0]), &m)); err != nil {
				return cli.Usage(err)
			}
			c.inPod = true
			// The scheduler places client and server, as it does in pods. A quick run neither traces packets nor times
			// programs, which would concern the whole kernel of the node.
			o := bench.Options{Suites: []suites.Suite{suites.Advice(m)}, Time: limit, Slice: bench.ClusterSlice,
				CPUs: host.AnyCPU, Quick: true}
			file, _, err := c.measure(cmd, o, filepath.Join(c.stateDir, "results"), "")
			if err == nil {
				err = c.printResults(file)
			}
			return err
		},
	}
}
