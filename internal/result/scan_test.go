// SPDX-License-Identifier: Apache-2.0

package result

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// TestReadTakesLittleMemory reads files of a few megabytes that would decode to gigabytes.
func TestReadTakesLittleMemory(t *testing.T) {
	for name, entry := range map[string]string{"objects": "{}", "null": "null", "numbers": "0.5", "strings": `""`,
		"lists": "[]"} {
		t.Run(name, func(t *testing.T) {
			list := strings.Repeat(entry+",", 5_000_000) + entry
			path := filepath.Join(t.TempDir(), "results.json")
			testkit.Succeed(t, os.WriteFile(path, fmt.Appendf(nil, `{"schema":%d,"rows":[%s]}`, Schema, list), 0o600))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Read(path)
			runtime.ReadMemStats(&after)
			testkit.Check(t, err != nil && strings.Contains(err.Error(), "the most is"), "error %v", err)
			mb := (after.TotalAlloc - before.TotalAlloc) >> 20
			testkit.Check(t, mb <= 200, "%d MB were allocated", mb)
		})
	}
}

// TestScan counts entries of lists other than numbers, outside of strings.
func TestScan(t *testing.T) {
	golden, err := os.ReadFile("testdata/golden.json")
	testkit.Succeed(t, err)
	full := append(bytes.Repeat([]byte(`"a",`), maxEntries/2-1), `"a"],[`...)
	full = append(full, bytes.Repeat([]byte(`"a",`), maxEntries/2-3)...) // with the two lists, all but one entry
	for _, c := range []struct {
		text string
		want bool
	}{
		{string(golden), false},
		{"[[" + string(full) + `"\\\",[]"]]`, false},
		{"[[" + string(full) + `"", ""]]`, true},
		{"[[" + string(full) + `"", -1, 2]]`, false},
		{"[[" + string(full) + "{}, null]]", true},
		{"[" + strings.Repeat("0,", MaxSamples-1) + "0]", false},
		{"[" + strings.Repeat("0,", MaxSamples) + "0]", true},
		{`{"a": "` + strings.Repeat("[{},", maxEntries) + `"}`, false},
		{strings.Repeat("]", 10) + `"\`, false},
	} {
		got := scan([]byte(c.text)).err()
		testkit.Check(t, (got != nil) == c.want, "%.40s...: problems %v", c.text, got)
	}
}

// TestWritesOnlyWhatIsRead checks that a file is not written that its reader would refuse, though each
// of its parts keeps its limit.
func TestWritesOnlyWhatIsRead(t *testing.T) {
	file := func(rows int) File {
		f := File{Schema: Schema, Suites: []Suite{{Name: "pod-links", Question: "?", Layout: LayoutMatrix,
			Answer: []string{AnswerFastest}}}}
		for i := range rows {
			f.Rows = append(f.Rows, Row{
				Suite: "pod-links", ID: fmt.Sprint(i), Link: "veth", Datapath: DatapathKernel, Placement: PlacementSameHost,
				Overlay: OverlayNone,
				Target:  TargetPodIP, Via: ViaNone, Workload: WorkloadTCPRR, Status: StatusOK, Engine: "native",
				Unit:    UnitTransactions,
				Samples: []float64{1}, Evidence: Evidence{Hooks: slices.Repeat([]string{"host"}, maxList)},
			})
		}
		return f
	}
	data, err := Marshal(file(60))
	filled := scan(data).filled()
	testkit.Check(t, err == nil && !(filled < 0.2) && !(filled > 0.5), "a file of 60 rows: %v, filled %g", err, filled)
	_, err = Marshal(file(200))
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "the most is"), "a file of 200 rows: %v", err)
}
