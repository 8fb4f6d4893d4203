// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// wording tells which figures are better, and the words for it. Rates of a timed run
// are better the higher they are; counted instructions and times of calls, the lower.
type wording struct {
	counted   bool
	less      bool   // whether less is better
	best      string // of the best of several
	tied      string // of several that share the first place
	extreme   string // where the best figure lies
	higher    string // of a figure above another
	lower     string // of a figure below another
	factor    string // of a figure that is several times another
	direction string // which bars of a chart are better
	costs     string // the beginning of the sentence on cluster IPs
	where     string // what the answer holds for
	atOne     string // what a chart's line at one means for a cluster IP
}

// wordingOf returns the wording for the figures of a workload.
func wordingOf(counted bool, of result.Key) wording {
	switch {
	case counted:
		return wording{
			counted: true, less: true,
			best: "takes the fewest instructions", tied: "are tied for the fewest instructions", extreme: "lowest", higher: "more", lower: "fewer", factor: "as many",
			direction: "Instructions, not time: shorter is better.",
			costs:     "Cost of a cluster IP in instructions, against the pod IP of the same connection: ",
			atOne:     "Instructions, not time. 1.0 means no cost; right of it, the cluster IP takes more instructions.",
		}
	case of.Setup.Paced():
		return wording{
			less: true,
			best: "has the lowest latency", tied: "are tied for the lowest latency", extreme: "lowest", higher: "slower", lower: "faster", factor: "the time",
			direction: "Latency, so shorter is better.", where: " on this machine",
			costs: "Latency with a cluster IP against the pod IP of the same connection: ",
			atOne: "1.0 means no cost; right of it, the cluster IP is slower.",
		}
	case of.Workload == result.WorkloadServiceMemory:
		return wording{
			less: true,
			best: "takes the least memory", tied: "are tied for the least memory", extreme: "lowest", higher: "more memory", lower: "less memory",
			factor: "the memory", direction: "Memory, so shorter is better.", where: " on this machine",
		}
	case ofCalls(of.Workload), strings.HasPrefix(of.Workload, result.WorkloadFirstPacket), strings.HasSuffix(of.Workload, "_change"), of.Workload == result.WorkloadPolicyApply:
		return wording{
			less: true,
			best: "is the fastest", tied: "are tied as the fastest", extreme: "lowest", higher: "more time", lower: "less time", factor: "the time",
			direction: "Time, so shorter is better.", where: " on this machine",
		}
	}
	return wording{
		best: "is the fastest", tied: "are tied as the fastest", extreme: "highest", higher: "faster", lower: "slower", factor: "as fast",
		direction: "Longer is better.", where: " on this machine",
		costs: "Cost of a cluster IP against the pod IP of the same connection: ",
		atOne: "1.0 means no cost; left of it, the cluster IP is slower.",
	}
}

// worse reports whether the numerator of a ratio is worse than the denominator.
func (w wording) worse(v verdict) bool { return v == lower && !w.less || v == higher && w.less }

// describe puts the verdict on a ratio in words.
func (w wording) describe(v verdict, ratio float64) string {
	switch v {
	case tied:
		return "no difference found"
	case lower:
		return format.Percent(1-ratio) + " " + w.lower
	case higher:
		if ratio >= 2 {
			return format.Factor(ratio) + " " + w.factor
		}
		return format.Percent(ratio-1) + " " + w.higher
	case unclear:
		return cannotTell
	case tooFew:
	}
	return "too few rounds"
}
