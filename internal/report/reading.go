// SPDX-License-Identifier: Apache-2.0

package report

import "mustang/internal/result"

// reading is how figures are read: which are better, and in what words. Rates of
// a timed run are better the higher they are, instructions of a counted one, and
// times of calls, the lower.
type reading struct {
	counted      bool
	less         bool   // whether less is better
	best         string // of the best of some ways
	tied         string // of several that share that place
	extreme      string // where the best median lies
	higher       string // of a figure above another
	lower        string // of a figure below another
	direction    string // which bars are better
	costs        string // the beginning of the sentence on cluster IPs
	where        string // what the answer holds for
	costsAtRight string // what a chart's line at one means
}

// timed reads rates.
func timed() reading {
	return reading{
		best: "is the fastest", tied: "are tied as the fastest", extreme: "highest", higher: "faster", lower: "slower",
		direction: "Longer is better.", where: " on this machine",
		costs:        "A cluster IP costs, against the pod IP of the same connection: ",
		costsAtRight: "At the line a cluster IP costs nothing; left of it, it costs.",
	}
}

// counted reads instructions.
func counted() reading {
	return reading{
		counted: true, less: true,
		best: "takes the fewest instructions", tied: "are tied for the fewest instructions", extreme: "lowest", higher: "more", lower: "fewer",
		direction:    "Instructions, not time: shorter is better.",
		costs:        "A cluster IP costs, in instructions against the pod IP of the same connection: ",
		costsAtRight: "Of instructions, not time. At the line a cluster IP costs nothing; right of it, it costs.",
	}
}

// called reads times of calls.
func called() reading {
	return reading{
		less: true,
		best: "is the fastest", tied: "are tied as the fastest", extreme: "lowest", higher: "more time", lower: "less time",
		direction: "Time, so shorter is better.", where: " on this machine",
	}
}

// readingOf is how the figures of a workload are read.
func readingOf(run result.Run, workload string) reading {
	switch {
	case run.Counted():
		return counted()
	case ofCalls(workload):
		return called()
	}
	return timed()
}

// better reports whether figure a is better than b.
func (r reading) better(a, b float64) bool {
	if r.less {
		return a < b
	}
	return a > b
}

// worse reports whether a verdict on a ratio of figures is to the disadvantage of
// the one above the line.
func (r reading) worse(v verdict) bool {
	return v == lower && !r.less || v == higher && r.less
}

// words says a verdict on a ratio.
func (r reading) words(v verdict, c result.Comparison) string {
	switch v {
	case tied:
		return "no difference found"
	case lower:
		return percent(1-c.Ratio) + " " + r.lower
	case higher:
		return percent(c.Ratio-1) + " " + r.higher
	}
	return "too few rounds"
}

// countedWarning is what the reader of counted figures must know first.
const countedWarning = "Instructions, not time: the processor of an emulated machine counted them, and fewer is better. " +
	"They repeat from run to run, and know nothing of caches, of work done side by side, or of any network card."
