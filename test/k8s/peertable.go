// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"mustang/internal/bench/stats"
)

// Names of figures that bench cluster does not measure.
const (
	residentMemory = "resident memory"
	ownMemory      = "own memory"
	serviceChange  = "service change"
	podStarts      = "pod starts"
)

// The tables of networks stand between these lines.
const (
	peersBegin = "<!-- networks: build/k8s peers -->"
	peersEnd   = "<!-- end of networks -->"
)

// column is a figure of the tables. A row of bench cluster has the name of its workload; cpu is its CPU time.
type column struct {
	name, title string
	cpu, less   bool // less is better
}

// traffic are the columns of each path, others the columns of the last table.
var (
	traffic = []column{
		{"tcp_rr", "requests/s", false, false}, {"tcp_rr", "CPU µs per request", true, true},
		{"tcp_crr", "connections/s", false, false}, {"tcp_crr", "CPU µs per connection", true, true},
		{"tcp_stream", "Gbit/s", false, false}, {"tcp_stream", "CPU µs per MB", true, true},
	}
	others = []column{
		{serviceChange, "Service change, ms", false, true}, {podStarts, "pods started/s", false, false},
		{residentMemory, "resident memory, MB", false, true}, {ownMemory, "not shared with files, MB", false, true},
	}
)

// paths are the tables of traffic: the beginning of rows' IDs, and a title.
var paths = [][2]string{
	{"pod-ip/same-node", "Pod to pod, same node"}, {"pod-ip/two-nodes", "Pod to pod, two nodes"},
	{"cluster-ip/same-node", "Pod to Service, same node"}, {"cluster-ip/two-nodes", "Pod to Service, two nodes"},
}

// controls are paths that do without the network of pods.
var controls = []string{"host/same-node", "host/two-nodes"}

// on returns the column for a path.
func (c column) on(path string) column {
	c.name = path + " " + c.name
	return c
}

// samples returns a network's figures, one for each turn.
func (m measured) samples(peer string, c column) (out []stats.Sample) {
	for _, t := range m.Turns {
		f, ok := t.Figures[c.name]
		if !ok || t.Peer != peer {
			continue
		}
		value := f.Value
		if c.cpu {
			value = f.CPU
		}
		out = append(out, stats.Sample{Position: stats.Position{Lab: t.Number}, Value: value})
	}
	return out
}

// claim is a figure of a network beside the figure of the Mustang that routes alike.
type claim struct {
	peer
	path string
	column
	stats.Comparison
	better, worse bool // after Holm's correction
}

// claims compares all figures of other networks.
func (m measured) claims() (all []claim) {
	for _, p := range peers {
		compare := func(path string, c column) {
			on := c
			if path != "" {
				on = c.on(path)
			}
			ratio := stats.Compare(m.samples(p.name, on), m.samples(p.against, on))
			if ratio.Interval != nil {
				all = append(all, claim{peer: p, path: path, column: c, Comparison: ratio})
			}
		}
		for _, path := range paths {
			for _, c := range traffic {
				compare(path[0], c)
			}
		}
		for _, c := range others {
			compare("", c)
		}
	}
	var p []float64
	for _, c := range all {
		p = append(p, c.P)
	}
	for i, p := range stats.Holm(p, 0) {
		found, more := p < stats.Significance, all[i].Value > 1
		all[i].better, all[i].worse = found && more != all[i].less, found && more == all[i].less
	}
	return all
}

// noise returns the largest difference from Mustang between hosts, in per cent.
func (m measured) noise() (most float64) {
	for _, p := range peers {
		for _, path := range controls {
			for _, c := range traffic {
				c = c.on(path)
				if ratio := stats.Compare(m.samples(p.name, c), m.samples(p.against, c)); ratio.Rounds > 0 {
					most = max(most, 100*math.Abs(ratio.Value-1))
				}
			}
		}
	}
	return most
}

// replace replaces the text between two lines of a document with the tables.
func (m measured) replace(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(data), peersBegin+"\n")
	_, after, ended := strings.Cut(rest, peersEnd+"\n")
	if !ok || !ended {
		return fmt.Errorf("%s: no lines %s and %s", path, peersBegin, peersEnd)
	}
	return os.WriteFile(path, []byte(before+peersBegin+"\n"+m.text()+peersEnd+"\n"+after), 0o644)
}

// text returns what the document says of the figures: where another network is better, the machine, and the tables.
func (m measured) text() string {
	var b strings.Builder
	all := m.claims()
	var better, worse []string
	for _, c := range all {
		line := fmt.Sprintf("| %s | %s | %s | %.2f | %.2f to %.2f |", c.peer.title, titleOf(c.path), c.column.title,
			c.Value, c.Interval[0], c.Interval[1])
		switch {
		case c.better:
			better = append(better, line)
		case c.worse:
			worse = append(worse, line)
		}
	}
	fmt.Fprintf(&b, "\n## Where another network is better\n\nOf %d figures, another network is better than Mustang in "+
		"%d, and worse in %d.\n", len(all), len(better), len(worse))
	for i, lines := range [][]string{better, worse} {
		if len(lines) > 0 {
			fmt.Fprintf(&b, "\n| %s | path | figure | times Mustang's | 95 %% interval |\n|---|---|---|--:|--:|\n%s\n",
				[]string{"better", "worse"}[i], strings.Join(lines, "\n"))
		}
	}
	turns := 0 // a turn that only starts pods under default deny does not count
	for _, p := range peers {
		turns = max(turns, len(m.samples(p.name, traffic[0].on(paths[1][0]))))
	}
	fmt.Fprintf(&b, "\nMachine: %s; Kubernetes %s; %s. Turns: %d.\n"+
		"Commands:\n\n```sh\n%s\n```\n\n"+
		"Between hosts, figures differ by up to %.0f %%: by noise, and by rules of kube-proxy that hosts pass too.\n",
		m.Machine, m.Kubernetes, m.Date, turns, strings.Join(m.Commands, "\n"), m.noise())
	for _, path := range paths {
		fmt.Fprintf(&b, "\n### %s\n%s", path[1], m.table(path[0], traffic, all))
	}
	fmt.Fprintf(&b, "\n### Programming, pods and memory\n%s", m.table("", others, all))
	fmt.Fprintln(&b, m.policed())
	return b.String()
}

// policed returns a table of pods that started under policies, unless no turn has any.
func (m measured) policed() string {
	var b strings.Builder
	for _, p := range peers {
		var denied, leaked, allowed int
		var last, started time.Duration
		var first []time.Duration
		for _, t := range m.Turns {
			if t.Peer == p.name && t.Policed != nil {
				denied, leaked, allowed = denied+t.Policed.Denied, leaked+t.Policed.Leaked, allowed+t.Policed.Allowed
				last, started = max(last, t.Policed.Last), started+t.Policed.Started
				first = append(first, t.Policed.First...)
			}
		}
		if denied == 0 || len(first) == 0 {
			continue
		}
		slices.Sort(first)
		fmt.Fprintf(&b, "| %s | %d | %d | %.0f | %.1f | %.1f | %.1f |\n", p.title, denied, leaked, last.Seconds()*1e3,
			first[len(first)/2].Seconds()*1e3, first[len(first)-1].Seconds()*1e3, float64(denied+allowed)/started.Seconds())
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n### Pods that start under default deny\n\n| network | pods | pods that leaked | last leaked packet, ms | " +
		"first allowed packet, ms: median | longest | pods started/s |\n|---|--:|--:|--:|--:|--:|--:|\n" + b.String()
}

// table returns a table with a line for each network. Bold figures are better than Mustang's.
func (m measured) table(path string, columns []column, all []claim) string {
	var b strings.Builder
	fmt.Fprint(&b, "\n| network |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c.title)
	}
	fmt.Fprintln(&b, "\n|---|"+strings.Repeat("--:|", len(columns)))
	for _, p := range peers {
		var cells []string
		for _, c := range columns {
			on := c
			if path != "" {
				on = c.on(path)
			}
			text := cell(stats.Summarize(m.samples(p.name, on)))
			if slices.ContainsFunc(all, func(o claim) bool {
				return o.better && o.peer.name == p.name && o.path == path && o.column == c
			}) {
				text = "**" + text + "**"
			}
			cells = append(cells, text)
		}
		if slices.ContainsFunc(cells, func(text string) bool { return text != "–" }) {
			fmt.Fprintf(&b, "| %s | %s |\n", p.title, strings.Join(cells, " | "))
		}
	}
	return b.String()
}

// cell prints a figure, with the longer side of its 95 % interval in per cent.
func cell(e stats.Estimate) string {
	if e.Rounds == 0 {
		return "–"
	}
	places := max(0, 2-int(math.Floor(math.Log10(e.Value))))
	text := fmt.Sprintf("%.*f", places, e.Value)
	for i := len(text) - 3; places == 0 && i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	if e.Interval != nil {
		text += fmt.Sprintf(" ±%.*f %%", min(1, max(0, 1-int(math.Log10(100*e.HalfWidth()+1e-9)))), 100*e.HalfWidth())
	}
	return text
}

// titleOf returns the title of a path.
func titleOf(path string) string {
	for _, p := range paths {
		if p[0] == path {
			return strings.ToLower(p[1][:1]) + p[1][1:]
		}
	}
	return "per node"
}
