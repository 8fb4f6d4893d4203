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

// ID returns the ID of a lab's row.
func ID(plan, path string) string { return plan + "/" + path }

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

// Predict adds the rows of a measured cluster, with predictions from the results of labs, which may be empty. It notes
// why rows lack figures, each reason once, and other load.
func (a *Advice) Predict(cluster, labs result.File) {
	a.Rows = []Row{}
	for i, file := range []result.File{cluster, labs} {
		for _, r := range file.Rows {
			if r.Status != result.StatusOK && !slices.Contains(a.Unpredicted, r.Reason) {
				a.Unpredicted = append(a.Unpredicted, r.Reason)
			}
		}
		for _, note := range file.Run.Notes {
			if strings.HasPrefix(note, "Not reliable") {
				a.Notes = append(a.Notes, []string{"Cluster: ", "Labs: "}[i]+note)
			}
		}
	}
	p := predictor{cluster, labs}
	for _, r := range cluster.Rows {
		if r.Status != result.StatusOK || r.Repeats != "" || r.Target == result.TargetHostIP {
			continue
		}
		row := Row{Path: r.ID, Workload: r.Workload, Unit: r.Unit, Now: Figure{r.Median, r.CI95},
			Predicted: map[string]Prediction{}}
		now, known := spanOf(row.Now)
		for _, plan := range []string{WholeNetwork, ProxyOnly, NFTables} {
			if ratio, ok := p.ratio(plan, r); ok && known {
				row.Predicted[plan] = Prediction{ratio.figure(), now.times(ratio).figure()}
			}
		}
		a.Rows = append(a.Rows, row)
	}
}

type predictor struct{ cluster, labs result.File }

// ratio returns what a plan does to the figure of a row.
func (p predictor) ratio(plan string, row result.Row) (span, bool) {
	target, placement, _ := strings.Cut(row.ID, "/")
	switch {
	case plan != ProxyOnly:
		return p.ofLabs(plan, row)
	case p.labs.Rows == nil:
		return span{}, false
	case placement == SameNode: // the same programs connect both pods
		return p.ofLabs(WholeNetwork, row)
	}
	// A cluster IP then costs what the pod IP costs now.
	s, ok := p.compared(p.cluster, row.ID, PodIP+"/"+placement, row.Workload)
	return span{-s.at, s.above, s.below}, ok && target == ClusterIP
}

// ofLabs returns the ratio of two rows of labs. The interval of a cluster IP by Mustang extends to the ratio of a pod
// IP: labs translate per packet, agents at sockets, where an open connection costs what a pod IP costs.
func (p predictor) ofLabs(plan string, row result.Row) (span, bool) {
	target, placement, _ := strings.Cut(row.ID, "/")
	s, ok := p.compared(p.labs, ID(plan, row.ID), ID(Now, row.ID), row.Workload)
	if ok && plan == WholeNetwork && target == ClusterIP {
		var pod span
		pod, ok = p.compared(p.labs, ID(plan, PodIP+"/"+placement), ID(Now, row.ID), row.Workload)
		s = s.union(pod)
	}
	return s, ok
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

// union covers both intervals, and lies in the middle.
func (s span) union(t span) span {
	low, high := min(s.at-s.below, t.at-t.below), max(s.at+s.above, t.at+t.above)
	return span{(low + high) / 2, (high - low) / 2, (high - low) / 2}
}
