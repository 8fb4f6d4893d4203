// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"text/tabwriter"

	"mustang/test/k8s/internal/cluster"
)

// advise runs `mustang advise` on the cluster of another network, then measures the Mustang that routes alike, and
// prints what was predicted beside what was measured.
func (r *runner) advise(ctx context.Context, name string) error {
	other, known := peerNamed(name)
	own, also := peerNamed(other.against)
	if !known || !also {
		return fmt.Errorf("advise: %q: want another network of the command peers, such as flannel-vxlan", name)
	}
	if err := r.paths(ctx); err != nil {
		return err
	}
	dir := r.cluster.Dir
	r.cluster.Peers = filepath.Join(dir, "peers")
	if err := r.cluster.Programs.BuildPeers(ctx, "test/k8s", r.cluster.Peers, []string{other.Setup.Peer}); err != nil {
		return err
	}
	var advice cluster.Advice
	var before, after cluster.Bench
	err := r.on(ctx, dir, other, func(c *cluster.Cluster) (err error) {
		if before, err = c.Bench("--only", "host", "--time", (r.time / 8).String()); err != nil {
			return err
		}
		flags := []string{"--proxy", other.Proxy, "--nodes", "node1,node2", "--time", r.time.String()}
		if other.Setup.Peer != "flannel" { // which notes its backend in the API
			flags = append(flags, "--link", "bridge", "--overlay", "none")
		}
		var text string
		advice, text, err = c.Advise(flags...)
		fmt.Fprintln(r.stdout, text)
		return err
	})
	if err != nil {
		return err
	}
	if err := r.on(ctx, dir, own, func(c *cluster.Cluster) (err error) {
		after, err = c.Bench("--time", (r.time / 2).String())
		return err
	}); err != nil {
		return err
	}
	return r.compareAdvice(advice, before, after)
}

// on starts a cluster, and calls do with it.
func (r *runner) on(ctx context.Context, dir string, p peer, do func(*cluster.Cluster) error) error {
	o := r.cluster
	o.Setup, o.Dir = p.Setup, filepath.Join(dir, p.name)
	c, err := cluster.Start(ctx, o)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	if err = c.Resume(); err == nil { // once the nodes have settled
		err = do(c)
	}
	if closeErr := c.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// compareAdvice prints predicted and measured figures. Figures between hosts of both clusters show how much the machine
// itself differed.
func (r *runner) compareAdvice(advice cluster.Advice, before, after cluster.Bench) error {
	measured := map[string]cluster.Estimate{}
	for _, row := range after.Rows {
		if row.Status == "ok" && row.Repeats == "" {
			measured[row.ID+" "+row.Workload] = cluster.Estimate{Value: row.Median, CI95: row.CI95}
		}
	}
	tab := tabwriter.NewWriter(r.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tab, "ROW\tNOW\tPREDICTED\tMEASURED\tMEASURED/PREDICTED\t")
	inside, overlap, all := 0, 0, 0
	for _, row := range advice.Rows {
		id := row.Path + " " + row.Workload
		p, m := row.Predicted["mustang"].Figure, measured[id]
		if p.CI95 == nil || m.Value == 0 {
			fmt.Fprintf(tab, "%s\t%.4g\tnone\t%.4g\t\t\n", id, row.Now.Value, m.Value)
			continue
		}
		where := "outside"
		if all++; m.Value >= p.CI95[0] && m.Value <= p.CI95[1] {
			where = "inside"
			inside++
		}
		if m.CI95 != nil && m.CI95[1] >= p.CI95[0] && m.CI95[0] <= p.CI95[1] {
			overlap++
		}
		fmt.Fprintf(tab, "%s\t%.4g\t%.4g (%.4g to %.4g)\t%.4g\t%.2f\t%s\n", id, row.Now.Value, p.Value, p.CI95[0], p.CI95[1],
			m.Value, m.Value/p.Value, where)
	}
	for _, row := range before.Rows {
		if m := measured[row.ID+" "+row.Workload]; row.Status == "ok" && row.Repeats == "" && m.Value > 0 {
			fmt.Fprintf(tab, "%s %s (control)\t%.4g\t\t%.4g\t%.2f\t\n", row.ID, row.Workload, row.Median, m.Value,
				m.Value/row.Median)
		}
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(r.stdout, "%d of %d figures lie inside the predicted interval; the intervals of %d meet.\n", inside, all,
		overlap)
	return nil
}
