// SPDX-License-Identifier: Apache-2.0

package result

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Limits of a file, far above the size of any run. They bound the time and memory for reading an odd or hostile file.
const (
	maxWorkloads = 50    // of a suite, each number of flows counted
	maxList      = 1_000 // of each list without a limit of its own
	maxName      = 500   // bytes of a string that is not a text
	maxText      = 64 << 10
	maxFigure    = 1e15
	maxSeed      = 1<<53 - 1 // the largest whole number that every JSON reader holds exactly
)

// maxLengths are the limits of lists that have limits of their own, by the field's name in the file.
var maxLengths = map[string]int{
	"samples": MaxSamples, "positions": MaxSamples, "ratios": MaxSamples, "rows": 5_000, "comparisons": 20_000,
	"pairs": 10_000, "suites": 100, "groups": 100, "series": 100, "traces": 300, "steps": 200,
}

// texts are the names of the fields that hold sentences.
var texts = []string{"question", "reason", "note", "notes", "hooks", "findings", "versions", "settings", "offloads"}

// enums are the values of fields, by their type and their name in the file.
var enums = map[string][]string{
	"Run.clock":     {"", ClockTime, ClockInstructions},
	"Suite.layout":  {LayoutMatrix, LayoutList},
	"Series.color":  {ColorGray, ColorSlate, ColorOrange, ColorPurple, ColorBlue, ColorTeal, ColorOlive},
	"Row.datapath":  {DatapathKernel, DatapathEBPF},
	"Row.family":    {"", "ipv4", "ipv6"},
	"Row.overlay":   {OverlayNone, OverlayVXLAN},
	"Row.placement": {PlacementSameHost, PlacementTwoHosts},
	"Row.status":    {StatusOK, StatusSkipped, StatusFailed},
	"Row.target":    {TargetLoopback, TargetHostIP, TargetPodIP, TargetClusterIP, TargetPublishedPort, TargetNone},
	"Row.via":       {ViaNone, ViaIPTables, ViaNFTables, ViaIPVS, ViaEBPFTC, ViaEBPFSocket, ViaDocker},
	"Row.workload": {WorkloadTCPStream, WorkloadUDPStream, WorkloadTCPRR, WorkloadTCPCRR, WorkloadUDPRR, WorkloadCNIAdd,
		WorkloadCNIDel, WorkloadFirstPacket, WorkloadFirstPacketP99, WorkloadServiceProgram, WorkloadServiceChange,
		WorkloadServiceMemory, WorkloadPolicyApply, WorkloadPolicyChange},
	"Comparison.verdict": {"", VerdictLower, VerdictNone, VerdictHigher},
	"Step.direction":     {Request, Reply},
}

// notNegative are the figures that are not below 0, as all whole numbers are not.
var notNegative = []string{"samples", "median", "time", "low", "high", "load_share", "lost_share"}

// Validate checks f against the schema, and returns the first ten faults in an error of one line:
//   - Rows are unique and carry only values that the schema names.
//   - Every figure is a finite number below 1e15, and no sample of a row is below 0.
//   - An interval encloses its median.
//   - Counted and timed rows are not mixed.
//   - No list, name or text exceeds its limit.
func (f File) Validate() error {
	if f.Schema != Schema {
		return schemaError(f.Schema)
	}
	p := faults{at: "file"}
	p.most("suites", len(f.Suites), maxLengths["suites"])
	p.most("rows", len(f.Rows), maxLengths["rows"])
	p.most("comparisons", len(f.Run.Comparisons), maxLengths["comparisons"])
	p.most("traces", len(f.Run.Traces), maxLengths["traces"])
	p.at = "run"
	p.check(f.Run.Seed > maxSeed, "seed %d is above 2^53-1", f.Run.Seed)
	run := f.Run
	run.Comparisons, run.Traces = nil, nil // which have places of their own
	p.value("run", reflect.ValueOf(run))
	suites := map[string]bool{}
	for _, s := range f.Suites {
		p.at = fmt.Sprintf("suite %q", clip(s.Name))
		p.value("suite", reflect.ValueOf(s))
		p.check(s.Name == "" || s.Question == "", "name and question must not be empty")
		p.check(len(s.Answer) == 0, "answer must not be empty")
		p.check(suites[s.Name], "appears twice")
		suites[s.Name] = true
	}
	seen, workloads, perSuite := map[Key]bool{}, map[Key]bool{}, map[string]int{}
	for i, row := range f.Rows {
		p.at = fmt.Sprintf("row %d (%s %s)", i, clip(row.ID), clip(row.Workload))
		p.row(row, f.Run.Counted())
		k := row.Key()
		p.check(!suites[row.Suite], "suite %q is not in the file", row.Suite)
		p.check(seen[k], "appears twice")
		seen[k] = true
		if k.ID = ""; !workloads[k] {
			workloads[k] = true
			perSuite[k.Suite]++
			p.most("workloads and numbers of flows in its suite", perSuite[k.Suite], maxWorkloads)
		}
	}
	for _, t := range f.Run.Traces {
		p.at = fmt.Sprintf("trace of %s %s", clip(t.Suite), clip(t.ID))
		p.value("trace", reflect.ValueOf(t))
		p.check(t.Alike > t.Transactions, "%d of %d transactions are alike", t.Alike, t.Transactions)
	}
	for _, c := range f.Run.Comparisons {
		p.at = fmt.Sprintf("comparison %q (%s)", clip(c.Name), clip(c.Workload))
		p.value("comparison", reflect.ValueOf(c))
		p.check(c.Numerator == "" || c.Denominator == "", "numerator and denominator must be named")
		p.check(c.Rounds > MaxSamples || c.Rounds > 0 && len(c.Ratios) > 0 && c.Rounds != len(c.Ratios),
			"%d rounds with %d ratios", c.Rounds, len(c.Ratios))
		p.interval(c.RoundsDone(), c.Ratio, c.CI95)
		p.check(c.CI95 != nil && c.CI95[0] <= 0, "ci95 of a ratio has an end that is not above 0")
		p.check(!suites[c.Suite], "suite %q is not in the file", c.Suite)
	}
	return p.err()
}

// schemaError reports a file with a schema that this package cannot read; 0 if the file lacks one.
func schemaError(schema int) error {
	if schema == 0 {
		return errors.New("no schema number: not a result file")
	}
	return fmt.Errorf("unknown schema %d (this program reads %d): use the version that wrote the file", schema, Schema)
}

func (p *faults) row(r Row, counted bool) {
	p.value("row", reflect.ValueOf(r))
	p.check(r.ID == "" || r.Suite == "" || r.Link == "", "suite, id and link must be named")
	p.check(r.Status == StatusOK && len(r.Samples) == 0, "ok without a sample")
	p.check(r.Status == StatusOK && (r.Unit == "" || r.Engine == ""), "ok without unit or engine")
	p.check((r.Status == StatusSkipped || r.Status == StatusFailed) && r.Reason == "", "%s without a reason", r.Status)
	p.interval(len(r.Samples), r.Median, r.CI95)
	positions := 0
	for _, at := range r.Positions {
		positions += min(max(at.Count, 1), MaxSamples+1)
	}
	p.check(positions > 0 && positions != len(r.Samples), "%d positions of %d samples", positions, len(r.Samples))
	p.check(r.LostShare > 1, "lost_share %g is above 1", r.LostShare)
	l := r.LatencyUS
	p.check(l != nil && !slices.IsSorted([]float64{l.P50, l.P90, l.P99, l.P999}),
		"latency_us does not rise with the percentile")
	instructions := strings.HasPrefix(r.Unit, "instructions/")
	p.check(instructions && !counted, "unit %q in a file of timed rows", r.Unit)
	p.check(r.Unit != "" && !instructions && counted, "unit %q in a file of counted instructions", r.Unit)
	timed := r.LatencyUS != nil || r.CPUUSPerUnit != 0 || r.CPUSplit != nil || len(r.BPFNanos) > 0
	p.check(timed && counted, "a time in a file of counted instructions")
}

func (p *faults) interval(samples int, median float64, ci *[2]float64) {
	if ci != nil {
		p.check(samples < 6, "ci95 from %d samples, it takes 6", samples)
		p.check(ci[0] > median || median > ci[1], "median %g lies outside its ci95 [%g, %g]", median, ci[0], ci[1])
	}
}

// value checks a field's value and its parts: the lengths of strings and lists, the values of enums, and that figures
// are finite.
func (p *faults) value(field string, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if slices.Contains(texts, field) {
			p.most("bytes in a text of "+field, v.Len(), maxText)
		} else {
			p.most("bytes in a name of "+field, v.Len(), maxName)
		}
	case reflect.Int:
		p.check(v.Int() < 0, "%s %d is below 0", field, v.Int())
	case reflect.Float64:
		f := v.Float()
		p.check(math.IsNaN(f) || math.Abs(f) > maxFigure, "%s holds %g", field, f)
		p.check(f < 0 && slices.Contains(notNegative, field), "%s %g is below 0", field, f)
	case reflect.Pointer:
		if !v.IsNil() {
			p.value(field, v.Elem())
		}
	case reflect.Map:
		if p.most(field, v.Len(), maxList) {
			for key, value := range v.Seq2() {
				p.value(field, key)
				p.value(field, value)
			}
		}
	case reflect.Slice, reflect.Array:
		most, own := maxLengths[field]
		if !own {
			most = maxList
		}
		if p.most(field, v.Len(), most) {
			for i := range v.Len() {
				p.value(field, v.Index(i))
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type() == reflect.TypeFor[time.Time]() {
				break
			}
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			if allowed := enums[v.Type().Name()+"."+name]; allowed != nil && !slices.Contains(allowed, v.Field(i).String()) {
				p.check(true, "%s %q is none of %s", name, v.Field(i).String(), strings.Join(allowed, ", "))
			}
			p.value(name, v.Field(i))
		}
	default:
	}
}

type faults struct {
	at   string // the part of the file that is checked; empty for the whole
	list []string
	more int // faults beyond ten
}

// check adds a fault if something is wrong, up to ten. Texts of the file are clipped.
func (p *faults) check(wrong bool, format string, args ...any) {
	if !wrong {
		return
	}
	if len(p.list) == 10 {
		p.more++
		return
	}
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			args[i] = clip(text)
		}
	}
	text := fmt.Sprintf(format, args...)
	if p.at != "" {
		text = p.at + ": " + text
	}
	p.list = append(p.list, text)
}

func (p *faults) most(what string, n, most int) bool {
	p.check(n > most, "%d %s, the most is %d", n, what, most)
	return n <= most
}

func (p *faults) err() error {
	if len(p.list) == 0 {
		return nil
	}
	if p.more > 0 {
		p.list = append(p.list, fmt.Sprintf("and %d more", p.more))
	}
	return errors.New(strings.Join(p.list, "; "))
}

func clip(s string) string {
	if len(s) > 100 {
		s = s[:100] + "..."
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
