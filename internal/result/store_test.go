// SPDX-License-Identifier: Apache-2.0

package result

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReadSchema1 checks that a file of schema 1 gets descriptions of its suites
// that come from its rows.
func TestReadSchema1(t *testing.T) {
	f, err := Read(filepath.Join("testdata", "schema1.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Suite{
		{Name: "pod-links", Question: "pod-links", Layout: LayoutMatrix, Noun: "row", Answer: []string{AnswerFastest, AnswerServiceCost}},
		{Name: "latency", Question: "latency", Layout: LayoutList, Noun: "row", Reference: "host", Answer: []string{AnswerFastest, AnswerReference}},
	}
	if diff := cmp.Diff(want, f.Suites); diff != "" {
		t.Errorf("suites (-want +got):\n%s", diff)
	}
	for _, row := range f.Rows {
		if row.Baseline != (row.Link == LinkHost || row.ID == "host-to-pod") || row.Repeats != strings.TrimSuffix(row.ID, "/again") && row.Repeats != "" {
			t.Errorf("row %s: baseline %t, repeats %q", row.ID, row.Baseline, row.Repeats)
		}
	}
	for i, suite := range []string{"pod-links", "pod-links", "latency"} {
		if got := f.Run.Comparisons[i].Suite; got != suite {
			t.Errorf("comparison %d is of suite %q, want %q", i, got, suite)
		}
	}
	if _, err := Marshal(f); f.Schema != Schema || err != nil {
		t.Errorf("schema %d, %v", f.Schema, err)
	}
}

func TestReadErrors(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"other schema": {`{"schema":3,"rows":{"new":"layout"}}`, "unknown schema 3 (this program reads 1 to 2)"},
		"no schema":    {`{"rows":[]}`, "no schema number"},
		"half a file":  {`{"schema":2,"rows":[`, "unexpected end"},
		"wrong type":   {`{"schema":2,"rows":7}`, "rows"},
		"bad row":      {`{"schema":2,"rows":[{"id":"a"}]}`, `row 0 (a ): datapath "" is none of kernel, ebpf`},
	} {
		path := filepath.Join(t.TempDir(), "results.json")
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Read(path)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q in it", name, err, tt.want)
		}
		var schema *SchemaError
		if errors.As(err, &schema) != strings.HasSuffix(name, "schema") {
			t.Errorf("%s: %v is of type %T", name, err, err)
		}
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}
