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
	counted bool
	less    bool   // whether less is better
	best    string // of the best of several
	extreme string // where the best figure lies
	higher  string // of a figure above another
	lower   string // of a figure below another
	factor  string // of a figure that is several times another
}

// wordingOf returns the wording for the figures of a workload.
func wordingOf(counted bool, of result.Key) wording {
	switch {
	case counted:
		return wording{
			counted: true, less: true,
			best: "takes the fewest instructions", extreme: "lowest", higher: "more", lower: "fewer", factor: "as many",
		}
	case of.Setup.Paced():
		return wording{
			less: true,
			best: "has the lowest latency", extreme: "lowest", higher: "slower", lower: "faster", factor: "the time",
		}
	case of.Workload == result.WorkloadServiceMemory:
		return wording{
			less: true,
			best: "takes the least memory", extreme: "lowest", higher: "more memory", lower: "less memory",
			factor: "the memory",
		}
	case ofCalls(of.Workload), strings.HasPrefix(of.Workload, result.WorkloadFirstPacket), strings.HasSuffix(of.Workload, "_change"), of.Workload == result.WorkloadPolicyApply:
		return wording{
			less: true,
			best: "is the fastest", extreme: "lowest", higher: "more time", lower: "less time", factor: "the time",
		}
	}
	return wording{
		best: "is the fastest", extreme: "highest", higher: "faster", lower: "slower", factor: "as fast",
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
	case tooFew:
	}
	return "too few rounds"
}
