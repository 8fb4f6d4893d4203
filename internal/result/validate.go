// SPDX-License-Identifier: Apache-2.0

package result

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// maxSeed is the largest whole number that every JSON reader holds exactly.
const maxSeed = 1<<53 - 1

// Validate checks that f is of this schema, that its rows are unique and carry
// only values that the schema names, that every figure is a finite number,
// that an interval encloses its median, and that no counted row stands beside a
// timed one. All that is wrong is reported at once.
func (f File) Validate() error {
	if f.Schema != Schema {
		return &SchemaError{Schema: f.Schema}
	}
	var errs []error
	if f.Run.Seed > maxSeed {
		errs = append(errs, fmt.Errorf("run: seed %d is above 2^53-1", f.Run.Seed))
	}
	if f.Run.Rounds < 0 {
		errs = append(errs, fmt.Errorf("run: %d rounds", f.Run.Rounds))
	}
	if !slices.Contains([]string{"", ClockTime, ClockInstructions}, f.Run.Clock) {
		errs = append(errs, fmt.Errorf("run: clock %q is none of %s, %s", f.Run.Clock, ClockTime, ClockInstructions))
	}
	seen := map[Key]bool{}
	for i, row := range f.Rows {
		name := fmt.Sprintf("row %d (%s %s)", i, row.ID, row.Workload)
		for _, problem := range row.problems() {
			errs = append(errs, fmt.Errorf("%s: %s", name, problem))
		}
		if problem := row.mixed(f.Run); problem != "" {
			errs = append(errs, fmt.Errorf("%s: %s", name, problem))
		}
		k := row.Key()
		if seen[k] {
			errs = append(errs, fmt.Errorf("%s: appears twice", name))
		}
		seen[k] = true
	}
	for _, c := range f.Run.Comparisons {
		for _, problem := range c.problems() {
			errs = append(errs, fmt.Errorf("comparison %q (%s): %s", c.Name, c.Workload, problem))
		}
	}
	return errors.Join(errs...)
}

// problems lists in words what is wrong with the row.
func (r Row) problems() []string {
	var out []string
	for _, field := range []struct {
		name, value string
		allowed     []string
	}{
		{"datapath", r.Datapath, []string{DatapathKernel, DatapathEBPF}},
		{"placement", r.Placement, []string{PlacementSameHost, PlacementTwoHosts}},
		{"overlay", r.Overlay, []string{OverlayNone, OverlayVXLAN}},
		{"target", r.Target, []string{TargetLoopback, TargetHostIP, TargetPodIP, TargetClusterIP, TargetPublishedPort, TargetNone}},
		{"via", r.Via, []string{ViaNone, ViaIPTables, ViaNFTables, ViaEBPFTC, ViaEBPFSocket, ViaDocker}},
		{"workload", r.Workload, []string{
			WorkloadTCPStream, WorkloadUDPStream, WorkloadTCPRR, WorkloadTCPCRR, WorkloadUDPRR, WorkloadCNIAdd, WorkloadCNIDel,
		}},
		{"status", r.Status, []string{StatusOK, StatusSkipped, StatusFailed}},
		{"family", r.Family, []string{"", "ipv4", "ipv6"}},
	} {
		if !slices.Contains(field.allowed, field.value) {
			out = append(out, fmt.Sprintf("%s %q is none of %s", field.name, field.value, strings.Join(field.allowed, ", ")))
		}
	}
	if r.ID == "" || r.Suite == "" || r.Link == "" {
		out = append(out, "suite, id and link must be named")
	}
	switch r.Status {
	case StatusOK:
		if len(r.Samples) == 0 {
			out = append(out, "ok without a sample")
		}
		if r.Unit == "" || r.Engine == "" {
			out = append(out, "ok without unit or engine")
		}
	case StatusSkipped, StatusFailed:
		if r.Reason == "" {
			out = append(out, r.Status+" without a reason")
		}
	}
	out = append(out, figures(r.Samples, r.Median, r.CI95)...)
	out = append(out, finite("cpu_us_per_unit", r.CPUUSPerUnit)...)
	out = append(out, finite("softirqs_per_unit", r.Evidence.SoftirqsPerUnit)...)
	out = append(out, finite("offered", r.Offered)...)
	out = append(out, finite("calls_per_second", r.CallsPerSecond)...)
	if r.Flows < 0 {
		out = append(out, fmt.Sprintf("%d flows", r.Flows))
	}
	if out = append(out, finite("lost_share", r.LostShare)...); r.LostShare < 0 || r.LostShare > 1 {
		out = append(out, fmt.Sprintf("lost_share %g is no share", r.LostShare))
	}
	if l := r.LatencyUS; l != nil {
		out = append(out, finite("latency_us", l.P50, l.P90, l.P99, l.P999)...)
		if !slices.IsSorted([]float64{l.P50, l.P90, l.P99, l.P999}) {
			out = append(out, "latency_us does not rise with the percentile")
		}
	}
	return out
}

// mixed says in words why the row must not stand in a file with the run's clock,
// nothing when it may.
func (r Row) mixed(run Run) string {
	counted := strings.HasPrefix(r.Unit, countedUnits)
	switch {
	case r.Unit == "" || counted == run.Counted():
	case counted:
		return fmt.Sprintf("unit %q in a file of timed rows", r.Unit)
	default:
		return fmt.Sprintf("unit %q in a file of counted instructions", r.Unit)
	}
	if run.Counted() && (r.LatencyUS != nil || r.CPUUSPerUnit != 0) {
		return "a time in a file of counted instructions"
	}
	return ""
}

// problems lists in words what is wrong with the comparison.
func (c Comparison) problems() []string {
	var out []string
	if c.Numerator == "" || c.Denominator == "" {
		out = append(out, "numerator and denominator must be named")
	}
	return append(out, figures(c.Ratios, c.Ratio, c.CI95)...)
}

// figures checks samples against their median and its interval.
func figures(samples []float64, median float64, ci *[2]float64) []string {
	out := finite("samples", samples...)
	out = append(out, finite("median", median)...)
	if ci == nil {
		return out
	}
	out = append(out, finite("ci95", ci[0], ci[1])...)
	if len(samples) < 6 {
		out = append(out, fmt.Sprintf("ci95 from %d samples, it takes 6", len(samples)))
	}
	if ci[0] > median || median > ci[1] {
		out = append(out, fmt.Sprintf("median %g lies outside its ci95 [%g, %g]", median, ci[0], ci[1]))
	}
	return out
}

// finite returns a problem when a value is NaN or infinite, which JSON cannot
// hold.
func finite(name string, values ...float64) []string {
	for _, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return []string{fmt.Sprintf("%s holds %g", name, v)}
		}
	}
	return nil
}
