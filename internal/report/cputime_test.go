// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"strings"
	"testing"

	"mustang/internal/report/render"
	"mustang/internal/result"
)

// TestCosts checks that the parts of CPU time and the time of programs are in wide tables and on the page, and that
// the table is missing without them.
func TestCosts(t *testing.T) {
	without := podRow("macvlan", 40, 39, 41)
	plain := podRow("veth", 30, 29, 31)
	plain.CPUUSPerUnit, plain.CPUUnit, plain.CPUSplit = 212, "MB", &result.CPUSplit{UserUS: 4.25, SystemUS: 130,
		SoftirqUS: 77.5}
	ebpf := podRow("veth+ebpf", 33, 32, 34)
	ebpf.CPUUSPerUnit, ebpf.CPUUnit, ebpf.CPUSplit = 201, "MB", &result.CPUSplit{UserUS: 4.5, SystemUS: 125, SoftirqUS: 71}
	ebpf.BPFNanos = []result.ProgramTime{{Program: "from_pod", RunsPerUnit: 25.8, NanosPerRun: 49.3},
		{Program: "to_pod", RunsPerUnit: 25.8, NanosPerRun: 7.25}}
	f := result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Rows: []result.Row{plain, ebpf, without},
		Run: result.Run{Suite: "pod-links"}}
	want := []string{"CPU time, throughput", "CPU µs per MB user system softirq eBPF programs", "212 4.25 130 77.5",
		"from_pod 49.3 ns, 25.8 per MB; to_pod 7.25 ns, 25.8 per MB"}
	for where, got := range map[string]string{"wide": textOf(t, f, render.Options{Wide: true}), "page": wordsOf(pageOf(t,
		f))} {
		t.Run(where, func(t *testing.T) { checkSays(t, strings.Join(strings.Fields(got), " "), want, nil) })
	}
	f.Rows = f.Rows[2:]
	checkSays(t, textOf(t, f, render.Options{Wide: true})+wordsOf(pageOf(t, f)), nil, []string{"CPU time, throughput"})
}
