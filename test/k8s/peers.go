// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mustang/test/k8s/internal/cluster"
)

// peer is a network of the comparison.
type peer struct {
	name, title string
	against     string // the name of the Mustang that routes alike; empty for Mustang
	cluster.Setup
}

// mustang and other return networks of two nodes. The words of other are a program, what joins the nodes, and a mode of
// kube-proxy.
func mustang(name, title, link, nodes string) peer {
	return peer{name, title, "", cluster.Setup{Link: link, Family: "ipv4", Nodes: nodes}}
}

func other(name, title, against, words string) peer {
	w := strings.Fields(words)
	return peer{name, title, against, cluster.Setup{Peer: w[0], Family: "ipv4", Nodes: w[1], Proxy: w[2]}}
}

// peers are the networks that are compared, in the order of the tables.
var peers = []peer{
	mustang("mustang-vxlan", "Mustang, veth, VXLAN", "veth", "vxlan"),
	other("flannel-vxlan", "flannel, VXLAN; kube-proxy, nftables", "mustang-vxlan", "flannel vxlan nftables"),
	mustang("mustang-native", "Mustang, veth, native", "veth", "native"),
	mustang("mustang-macvlan", "Mustang, macvlan, native", "macvlan", "native"),
	other("flannel-host-gw", "flannel, host-gw; kube-proxy, iptables", "mustang-native", "flannel native iptables"),
	other("bridge", "bridge plugin, static routes; kube-proxy, nftables", "mustang-native", "bridge native nftables"),
	other("kube-router", "kube-router, BGP; kube-proxy, nftables", "mustang-native", "kube-router native nftables"),
}

func peerNamed(name string) (peer, bool) {
	i := slices.IndexFunc(peers, func(p peer) bool { return p.name == name })
	if i < 0 {
		return peer{}, false
	}
	return peers[i], true
}

// comparison configures the measurement.
type comparison struct {
	peers                 []peer
	time                  time.Duration
	rounds, changes, pods int
	podTurns, policed     int
	document, data        string
	add                   bool
}

// figure is one of a turn.
type figure struct {
	Value float64
	CPU   float64 `json:",omitempty"` // µs per unit
}

// turn has the figures of one network's turn, by row and workload, or by the name of another measurement.
type turn struct {
	Number  int
	Peer    string
	Figures map[string]figure
	Policed *cluster.Policed `json:",omitempty"`
}

// measured is the data of a comparison.
type measured struct {
	Commands                  []string
	Date, Machine, Kubernetes string
	Turns                     []turn
}

// turns returns the number of turns.
func (m measured) turns() (count int) {
	for _, t := range m.Turns {
		count = max(count, t.Number+1)
	}
	return count
}

// comparisonOf parses the command's flags.
func (r *runner) comparisonOf(args []string) (o comparison, ok bool) {
	flags := flag.NewFlagSet("k8s peers", flag.ContinueOnError)
	flags.SetOutput(r.stderr)
	var names []string
	for _, p := range peers {
		names = append(names, p.name)
	}
	list := flags.String("peers", strings.Join(names, ","), "`networks`, a list with commas")
	flags.DurationVar(&o.time, "time", time.Hour, "how long to measure, once all clusters stand; 0 takes the figures of "+
		"-data")
	flags.BoolVar(&o.add, "add", false, "keep the figures of -data, and add to them")
	flags.IntVar(&o.rounds, "rounds", 24, "rounds of a turn's bench cluster; 0 goes without it")
	flags.IntVar(&o.changes, "changes", 5, "changes of a Service in a turn")
	flags.IntVar(&o.pods, "pods", 100, "pods to start at once")
	flags.IntVar(&o.podTurns, "pod-turns", 3, "in so many turns, pods are started too")
	flags.IntVar(&o.policed, "policed", 0, "pods to start under a policy that denies all, in each turn, and a tenth more "+
		"that it allows")
	flags.StringVar(&o.document, "o", "", "`document` whose tables are written")
	flags.StringVar(&o.data, "data", "build/peers.json", "`file` that keeps the figures")
	if flags.Parse(args) != nil || flags.NArg() > 0 {
		return o, false
	}
	for name := range strings.SplitSeq(*list, ",") {
		p, known := peerNamed(name)
		if !known {
			fmt.Fprintf(r.stderr, "k8s: -peers: %q: want some of %s\n", name, strings.Join(names, ", "))
			return o, false
		}
		o.peers = append(o.peers, p)
	}
	return o, true
}

// mostFailed is how many turns of networks may fail: their figures are left out.
const mostFailed = 5

// compare brings up all networks side by side, measures them in turns, and writes the tables.
func (r *runner) compare(ctx context.Context, o comparison) (err error) {
	var m measured
	if o.time == 0 || o.add {
		data, err := os.ReadFile(o.data)
		if err == nil {
			err = json.Unmarshal(data, &m)
		}
		if err != nil {
			return err
		}
		if o.time == 0 {
			return m.replace(o.document)
		}
	}
	if err := r.buildPeers(ctx, o.peers); err != nil {
		return err
	}
	var stands []*stand
	defer func() {
		for _, s := range stands {
			err = errors.Join(err, s.Close())
		}
	}()
	for _, p := range o.peers {
		s, err := r.startStand(ctx, p)
		if err != nil {
			return err
		}
		stands = append(stands, s)
	}
	if err := r.takeTurns(ctx, o, stands, &m); err != nil || o.document == "" {
		return err
	}
	return m.replace(o.document)
}

// buildPeers builds the programs of networks.
func (r *runner) buildPeers(ctx context.Context, all []peer) error {
	if err := r.paths(ctx); err != nil {
		return err
	}
	r.cluster.Peers = filepath.Join(r.cluster.Dir, "peers")
	var networks []string
	for _, p := range all {
		networks = append(networks, p.Setup.Peer)
	}
	return r.cluster.Programs.BuildPeers(ctx, "test/k8s", r.cluster.Peers, networks)
}

// takeTurns measures clusters, one of each of the comparison's networks, in turns.
func (r *runner) takeTurns(ctx context.Context, o comparison, stands []*stand, m *measured) error {
	m.Commands = append(m.Commands, "build/k8s "+strings.Join(r.args, " "))
	m.Date, m.Kubernetes = time.Now().Format(time.DateOnly), r.cluster.Programs.Version
	failed, first := 0, m.turns()
	for begun, number := time.Now(), first; number == first || time.Since(begun) < o.time; number++ {
		for _, i := range rand.Perm(len(stands)) {
			t := turn{Number: number, Peer: o.peers[i].name, Figures: map[string]figure{}}
			started := time.Now()
			if err := o.measure(stands[i], &t, &m.Machine); err != nil {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				fmt.Fprintf(r.stderr, "turn %d of %s: %v\n", number+1, t.Peer, err)
				if failed++; failed > mostFailed {
					return errors.New("too many turns failed")
				}
				continue
			}
			fmt.Fprintf(r.stderr, "%s took %.0f s\n", t.Peer, time.Since(started).Seconds())
			m.Turns = append(m.Turns, t)
			if err := m.save(o.data); err != nil {
				return err
			}
		}
		fmt.Fprintf(r.stderr, "turn %d is done after %.0f s\n", number+1, time.Since(begun).Seconds())
	}
	return nil
}

// stand is a cluster with pods, which is paused unless it is its turn.
type stand struct {
	*cluster.Cluster
	mover *cluster.Mover
}

func (r *runner) startStand(ctx context.Context, p peer) (*stand, error) {
	o, begun := r.cluster, time.Now()
	o.Setup, o.Dir = p.Setup, filepath.Join(o.Dir, p.name)
	c, err := cluster.Start(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	mover, err := c.StartMover()
	if err == nil {
		err = c.Pause()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", p.name, err), c.Close())
	}
	fmt.Fprintf(r.stderr, "%s stands after %.0f s\n", p.name, time.Since(begun).Seconds())
	return &stand{c, mover}, nil
}

// Close ends the cluster.
func (s *stand) Close() error { return errors.Join(s.mover.Close(), s.Cluster.Close()) }

// measure is one turn of one network.
func (o comparison) measure(c *stand, t *turn, machine *string) (err error) {
	if err := c.Resume(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Pause()) }()
	memory, err := c.Memory()
	if err != nil {
		return err
	}
	t.Figures[residentMemory], t.Figures[ownMemory] = figure{Value: memory.Resident / 1e6}, figure{Value: memory.Own / 1e6}
	if o.rounds > 0 {
		results, err := c.Bench("--rounds", fmt.Sprint(o.rounds))
		if err != nil {
			return err
		}
		*machine = fmt.Sprintf("%s, %d CPUs, Linux %s", results.Run.Machine.CPUModel, results.Run.Machine.CPUs,
			results.Run.Kernel)
		for _, row := range results.Rows {
			if row.Status == "ok" && row.Repeats == "" {
				t.Figures[row.ID+" "+row.Workload] = figure{row.Median, row.CPU}
			}
		}
	}
	if o.changes > 0 {
		took, err := c.mover.Change(o.changes)
		if err != nil {
			return err
		}
		slices.SortFunc(took, cmp.Compare[time.Duration])
		t.Figures[serviceChange] = figure{Value: took[len(took)/2].Seconds() * 1e3}
	}
	if o.pods > 0 && t.Number < o.podTurns {
		took, err := c.StartPods(o.pods)
		if err != nil {
			return err
		}
		t.Figures[podStarts] = figure{Value: float64(o.pods) / took.Seconds()}
	}
	if o.policed > 0 {
		p, err := c.StartPoliced(o.policed, max(1, o.policed/10))
		if err != nil {
			return err
		}
		t.Policed = &p
	}
	return nil
}

func (m measured) save(path string) error {
	data, err := json.MarshalIndent(m, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}
