// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"mustang/internal/bench/stats"
	"mustang/test/k8s/internal/cluster"
)

// adviseRounds is the number of rounds of bench cluster in a turn.
const adviseRounds = 8

// advise runs `mustang advise` on the cluster of another network. It then measures that cluster and the Mustang that
// routes alike in turns, and prints predicted gains beside measured ones.
func (r *runner) advise(ctx context.Context, name string) (err error) {
	other, known := peerNamed(name)
	own, also := peerNamed(other.against)
	if !known || !also {
		return fmt.Errorf("advise: %q: want another network of the command peers, such as flannel-vxlan", name)
	}
	if err := r.buildPeers(ctx, []peer{other}); err != nil {
		return err
	}
	from, err := r.startStand(ctx, other)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	advice, err := r.askAdvice(from, other)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	to, err := r.startStand(ctx, own) // only now: its agents' programs also run for the other cluster's sockets
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	var m measured
	o := comparison{peers: []peer{other, own}, time: r.time, rounds: adviseRounds,
		data: filepath.Join(r.cluster.Dir, "advise.json")}
	if err := r.takeTurns(ctx, o, []*stand{from, to}, &m); err != nil {
		return err
	}
	return r.compareAdvice(advice, m, other)
}

// askAdvice runs the command, and prints its answer.
func (r *runner) askAdvice(on *stand, other peer) (cluster.Advice, error) {
	if err := on.Resume(); err != nil {
		return cluster.Advice{}, err
	}
	flags := []string{"--proxy", other.Proxy, "--nodes", "node1,node2", "--time", r.time.String()}
	if other.Setup.Peer != "flannel" { // which notes its backend in the API
		flags = append(flags, "--link", "bridge", "--overlay", "none")
	}
	advice, text, err := on.Advise(flags...)
	fmt.Fprintln(r.stdout, text)
	return advice, errors.Join(err, on.Pause())
}

// compareAdvice prints predicted and measured gains, as ratios. A cluster's figure is first divided by the figure
// between its hosts in the same turn, since a machine's speed may differ by a third from turn to turn.
func (r *runner) compareAdvice(advice cluster.Advice, m measured, other peer) error {
	gain := func(m measured, row string) (c stats.Comparison, text string) {
		c = stats.Compare(m.samples(other.against, column{name: row}), m.samples(other.name, column{name: row}))
		if text = fmt.Sprintf("%.3f", c.Value); c.Interval != nil {
			text += fmt.Sprintf(" (%.3f to %.3f)", c.Interval[0], c.Interval[1])
		}
		return c, text
	}
	relative := m.overHosts()
	tab := tabwriter.NewWriter(r.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tab, "ROW\tPREDICTED\tMEASURED\t")
	inside, meet, all := 0, 0, 0
	for _, row := range advice.Rows {
		id := row.Path + " " + row.Workload
		measured, text := gain(relative, id)
		p := row.Predicted["mustang"].Ratio
		if p.CI95 == nil {
			fmt.Fprintf(tab, "%s\tnone\t%s\t\n", id, text)
			continue
		}
		where := "outside"
		if all++; measured.Value >= p.CI95[0] && measured.Value <= p.CI95[1] {
			where = "inside"
			inside++
		}
		if i := measured.Interval; i != nil && i[1] >= p.CI95[0] && i[0] <= p.CI95[1] {
			meet++
		}
		fmt.Fprintf(tab, "%s\t%.3f (%.3f to %.3f)\t%s\t%s\n", id, p.Value, p.CI95[0], p.CI95[1], text, where)
	}
	for _, path := range controls {
		for _, c := range traffic {
			if _, text := gain(m, path+" "+c.name); !c.cpu {
				fmt.Fprintf(tab, "%s %s\t\t%s\tby which rows above are divided\n", path, c.name, text)
			}
		}
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(r.stdout, "%d of %d gains lie inside the predicted interval; the intervals of %d meet. Turns: %d.\n",
		inside, all, meet, m.turns())
	return nil
}

// overHosts returns rates divided by the rates between hosts at the same places, under the same workload.
func (m measured) overHosts() (out measured) {
	for _, t := range m.Turns {
		relative := map[string]figure{}
		for name, f := range t.Figures {
			_, rest, _ := strings.Cut(name, "/")
			if host := t.Figures["host/"+rest]; host.Value > 0 {
				relative[name] = figure{Value: f.Value / host.Value}
			}
		}
		t.Figures = relative
		out.Turns = append(out.Turns, t)
	}
	return out
}
