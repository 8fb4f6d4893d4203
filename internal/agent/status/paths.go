// SPDX-License-Identifier: Apache-2.0

package status

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Path is a path to another node whose last check found a fault.
type Path struct {
	Node    string    `json:"node"`
	Finding string    `json:"finding"`
	Since   time.Time `json:"since"`
}

// Results of a check of a path.
const (
	PathOK          = "ok"
	PathSmallMTU    = "mtu"
	PathChecksums   = "checksum"
	PathUnreachable = "unreachable"
	PathNoAgent     = "no_agent" // the other node refuses the port: its agent does not run, or does not answer checks
)

// CountPaths adds metrics of paths. The returned function counts a check with a result, unless this is empty, and sets
// the number of nodes with faults.
func (s *Tracker) CountPaths() func(result string, faults int) {
	create := promauto.With(s.registry)
	checks := create.NewCounterVec(prometheus.CounterOpts{Name: "mustang_path_checks_total",
		Help: "Checks of paths to other nodes, by result."}, []string{"result"})
	for _, result := range []string{PathOK, PathSmallMTU, PathChecksums, PathUnreachable, PathNoAgent} {
		checks.WithLabelValues(result)
	}
	faulty := create.NewGauge(prometheus.GaugeOpts{Name: "mustang_path_faults",
		Help: "Nodes whose last check found a fault: mustang agent status lists them."})
	return func(result string, faults int) {
		if faulty.Set(float64(faults)); result != "" {
			checks.WithLabelValues(result).Inc()
		}
	}
}

func (t text) paths(all []Path, now time.Time) {
	if len(all) == 0 {
		return
	}
	t.line("")
	t.line("NODE\tSINCE\tPATH")
	for _, p := range all {
		t.line("%s\t%s\t%s", p.Node, ago(p.Since, now), p.Finding)
	}
}
