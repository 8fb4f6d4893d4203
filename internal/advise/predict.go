// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"math"
	"slices"
	"strings"

	"mustang/internal/result"
)

// Plans, and the present network. Labs build all but ProxyOnly.
const (
	Now          = "now"
	WholeNetwork = "mustang"            // Mustang is the whole network
	ProxyOnly    = "replace-kube-proxy" // Mustang behind the other plugin, in place of kube-proxy
	NFTables     = "nftables"           // kube-proxy's mode
)

// Parts of paths: the target before the slash, the placement behind it.
const (
	PodIP     = "pod-ip"
	ClusterIP = "cluster-ip"
	SameNode  = "same-node"
	TwoNodes  = "two-nodes"
)

const twoCPUs = "@2cpus"

// ID returns the ID of a lab's row, with client and server on one CPU or apart on two.
func ID(plan, path string, apart bool) string {
	id := plan + "/" + path
	if apart {
		id += twoCPUs
	}
	return id
}

// partsOf returns the target and the placement of a path.
func partsOf(path string) (target, placement string) {
	target, placement, _ = strings.Cut(path, "/")
	return target, placement
}

// Figure is a figure, or a ratio of figures, with its 95 % interval; nil: unknown.
type Figure struct {
	Value float64     `json:"value"`
	CI95  *[2]float64 `json:"ci95"`
}

// Row is a path of the cluster under a workload: the figure now, and the predicted ones by plan.
type Row struct {
	Path      string                `json:"path"`
	Workload  string                `json:"workload"`
	Unit      string                `json:"unit"`
	Now       Figure                `json:"now"`
	Predicted map[string]Prediction `json:"predicted"`
}

// Prediction is the ratio of labs, and the figure that it gives.
type Prediction struct {
	Ratio  Figure `json:"ratio"`
	Figure Figure `json:"figure"`
}

// Predict returns the rows of a measured cluster with predictions from the results of labs, which may be empty.
func Predict(cluster, labs result.File) []Row {
	p, rows := predictor{cluster, labs}, []Row{}
	for _, r := range cluster.Rows {
		if r.Status != result.StatusOK || r.Repeats != "" || r.Target == result.TargetHostIP {
			continue
		}
		row := Row{Path: r.ID, Workload: r.Workload, Unit: r.Unit, Now: Figure{r.Median, r.CI95},
			Predicted: map[string]Prediction{}}
		now, known := spanOf(row.Now)
		for _, plan := range []string{WholeNetwork, ProxyOnly, NFTables} {
			if ratio, ok := p.ratio(plan, r); ok {
				prediction := Prediction{Ratio: ratio.figure(), Figure: Figure{Value: row.Now.Value * ratio.figure().Value}}
				if known {
					prediction.Figure = now.times(ratio).figure()
				}
				row.Predicted[plan] = prediction
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// Skipped returns why rows of files lack figures, each reason once. The ends of labs on two CPUs only widen intervals.
func Skipped(files ...result.File) (reasons []string) {
	for _, file := range files {
		for _, r := range file.Rows {
			if r.Status != result.StatusOK && !strings.HasSuffix(r.ID, twoCPUs) && !slices.Contains(reasons, r.Reason) {
				reasons = append(reasons, r.Reason)
			}
		}
	}
	return reasons
}

// Notes returns the remarks of a file on other load of the machine.
func Notes(where string, file result.File) (notes []string) {
	for _, note := range file.Run.Notes {
		if strings.HasPrefix(note, "Not reliable") {
			notes = append(notes, where+": "+note)
		}
	}
	return notes
}

type predictor struct{ cluster, labs result.File }

// ratio returns what a plan does to the figure of a row.
func (p predictor) ratio(plan string, row result.Row) (span, bool) {
	if plan != ProxyOnly {
		return p.ofLabs(plan, row)
	}
	target, placement := partsOf(row.ID)
	switch {
	case p.labs.Rows == nil:
	case placement == SameNode: // the same programs connect both pods
		return p.ofLabs(WholeNetwork, row)
	case target == ClusterIP: // it then costs what the pod IP costs now
		if s, ok := p.compared(p.cluster, ClusterIP+"/"+placement, PodIP+"/"+placement, row.Workload); ok {
			return s.inverse(), true
		}
	}
	return span{}, false
}

// ofLabs returns the ratio of two rows of labs. It covers the intervals for ends on one CPU and on two.
func (p predictor) ofLabs(plan string, row result.Row) (span, bool) {
	_, placement := partsOf(row.ID)
	now, podIP := ID(Now, row.ID, true), PodIP+"/"+placement
	one, ok := p.compared(p.labs, ID(plan, row.ID, false), ID(Now, row.ID, false), row.Workload)
	if !ok {
		return span{}, false
	}
	all := one
	if two, ok := p.compared(p.labs, ID(plan, row.ID, true), now, row.Workload); ok {
		all = all.union(two)
	}
	if plan != WholeNetwork || row.Target != result.TargetClusterIP {
		return all, true
	}
	free, both := p.compared(p.labs, ID(plan, podIP, true), now, row.Workload)
	if socket, ok := p.compared(p.labs, ID(plan, row.ID, false), ID(plan, podIP, false), row.Workload); ok {
		if both { // what a translated socket costs is known on one CPU alone
			all = all.union(free.times(socket))
		}
		return all, true
	}
	// Labs translated per packet. Agents translate at sockets, where an open connection costs what a pod IP costs.
	if both {
		all = all.union(free)
	}
	if free, ok := p.compared(p.labs, ID(plan, podIP, false), ID(Now, row.ID, false), row.Workload); ok {
		all = all.union(free)
	}
	return all, true
}

// compared returns the ratio of two rows of a file, from its comparisons.
func (p predictor) compared(in result.File, numerator, denominator, workload string) (span, bool) {
	i := slices.IndexFunc(in.Run.Comparisons, func(c result.Comparison) bool {
		return c.Numerator == numerator && c.Denominator == denominator && c.Workload == workload
	})
	if i < 0 {
		return span{}, false
	}
	c := in.Run.Comparisons[i]
	return spanOf(Figure{c.Ratio, c.CI95})
}

// span is a figure on logarithms, and how far its interval extends below and above.
type span struct{ at, below, above float64 }

func spanOf(f Figure) (span, bool) {
	if f.CI95 == nil || f.Value <= 0 || f.CI95[0] <= 0 {
		return span{}, false
	}
	at := math.Log(f.Value)
	return span{at, at - math.Log(f.CI95[0]), math.Log(f.CI95[1]) - at}, true
}

func (s span) figure() Figure {
	return Figure{math.Exp(s.at), &[2]float64{math.Exp(s.at - s.below), math.Exp(s.at + s.above)}}
}

// times multiplies independent figures.
func (s span) times(t span) span {
	return span{s.at + t.at, math.Hypot(s.below, t.below), math.Hypot(s.above, t.above)}
}

func (s span) inverse() span { return span{-s.at, s.above, s.below} }

// union covers both intervals, and lies in the middle.
func (s span) union(t span) span {
	low, high := min(s.at-s.below, t.at-t.below), max(s.at+s.above, t.at+t.above)
	return span{(low + high) / 2, (high - low) / 2, (high - low) / 2}
}
