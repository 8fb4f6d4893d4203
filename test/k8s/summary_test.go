// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mustang/internal/testkit"
)

const ginkgo = `[{"RunTime": 77500000000, "SpecReports": [
 {"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed", "NumAttempts": 1},
 {"ContainerHierarchyTexts": ["[sig-network] A"], "LeafNodeType": "It", "LeafNodeText": "works", "State": "passed", "NumAttempts": 1},
 {"ContainerHierarchyTexts": ["[sig-network] A", "b"], "LeafNodeType": "It", "LeafNodeText": "fails", "State": "failed", "NumAttempts": 1,
  "Failure": {"Message": "no answer\nand more"}},
 {"LeafNodeType": "It", "LeafNodeText": "late", "State": "timedout", "NumAttempts": 1, "Failure": {"Message": "time"}},
 {"LeafNodeType": "It", "LeafNodeText": "needs more", "State": "skipped", "NumAttempts": 1, "Failure": {"Message": "two nodes"}},
 {"LeafNodeType": "It", "LeafNodeText": "not chosen", "State": "skipped", "NumAttempts": 0}]}]`

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	testkit.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestReadReport(t *testing.T) {
	names, run, err := readReport(write(t, ginkgo))
	testkit.Succeed(t, err)
	want := specRun{Seconds: 77, Passed: 1, Failed: map[string]string{"[sig-network] A b fails": "no answer",
		"late": "time"}, Skipped: map[string]string{"needs more": "two nodes"}}
	diff := cmp.Diff(want, run)
	testkit.Check(t, diff == "", "%v", diff)
	if diff := cmp.Diff([]string{"[sig-network] A b fails", "[sig-network] A works", "late", "needs more"},
		names); diff != "" {
		t.Error(diff)
	}
}

// TestAddRun adds runs: the newest of a set-up stays, and runs of other specs or releases go.
func TestAddRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "summary")
	s := testkit.Must(loadSummary(path))(t)
	run := specRun{Setup: "veth/dual/one", Group: "g", Passed: 1}
	setups := func() (all []string) {
		for _, r := range s.Runs {
			all = append(all, r.Group+" "+r.Setup)
		}
		return all
	}
	s.add("v1", []string{"a", "b"}, run)
	s.add("v1", []string{"a", "b"}, specRun{Setup: "bridge/dual/one", Group: "g"})
	s.add("v1", []string{"x"}, specRun{Setup: "veth/dual/one", Group: "h"})
	run.Passed = 2
	s.add("v1", []string{"a", "b"}, run)
	if got := setups(); !slices.Equal(got, []string{"g bridge/dual/one", "g veth/dual/one", "h veth/dual/one"}) ||
		s.Runs[1].Passed != 2 {
		t.Errorf("%q, %+v", got, s.Runs)
	}
	s.add("v1", []string{"a"}, run)
	if got := setups(); !slices.Equal(got, []string{"g veth/dual/one", "h veth/dual/one"}) {
		t.Errorf("after another list of specs: %q", got)
	}
	s.add("v2", []string{"a"}, run)
	got := setups()
	testkit.Check(t, slices.Equal(got, []string{"g veth/dual/one"}), "after another release: %q", got)
	testkit.Succeed(t, s.save(path))
	again, err := loadSummary(path)
	if diff := cmp.Diff(s, again); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestTables(t *testing.T) {
	s := summary{
		Kubernetes: "v1", Groups: map[string][]string{"conformance": {"[sig-network] A works [Conformance]", "late"}},
		Causes: map[string]string{"late": "it is slow here"},
		Runs: []specRun{
			{Setup: "veth/ipv6/one", Group: "conformance", Passed: 2},
			{Setup: "macvlan/dual/vxlan", Group: "conformance", Passed: 1, Failed: map[string]string{"late": "time"}},
			{Setup: "veth/dual/one", Group: "conformance", Passed: 1, Skipped: map[string]string{"late": "x"}},
		},
	}
	got, err := s.in("before\n" + tablesBegin + "\nold\n" + tablesEnd + "\nafter\n")
	want := "before\n" + tablesBegin + `

Kubernetes v1. Specs that passed, of those that ran:

| links | nodes | conformance, IPv6 | conformance, dual |
|---|---|--:|--:|
| veth | 1 | 2 of 2 | 1 of 1 |
| macvlan | 2, vxlan | - | 1 of 2 |

Set-ups in which each spec of conformance passed:

| conformance | veth | macvlan |
|---|--:|--:|
| A works | 2 | 1 |
| late | 1 | **0 of 1** |

Failed:

- late (macvlan/dual/vxlan): it is slow here

Skipped by themselves, by what they say:

- ` + "`x`: 1 (veth/dual/one)" + `

` + tablesEnd + "\nafter\n"
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	_, err = s.in(strings.ReplaceAll(want, tablesEnd, ""))
	testkit.Check(t, err != nil, "a text without an end is taken")
}

// TestUsage has command lines that make no sense.
func TestUsage(t *testing.T) {
	for _, line := range []string{"", "--", "frob", "up x", "test nothing", "test netpol short", "-focus x test netpol",
		"-record x test", "table x", "-- ", "test -- true",
		"-timeout x test", "versions x", "kill", "kill 0", "kill x", "kill 1 2", "-nodes native netpol-api",
		"netpol-api v1beta1",
		"-nodes one,native netpol-api v1beta1", "-nodes native netpol-api v1",
		"-nodes native -focus x -record y netpol-api v1beta1"} {
		t.Run(line, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := (&runner{stdout: &stdout, stderr: &stderr}).main(t.Context(), strings.Fields(line))
			testkit.Check(t, code == exitMisuse && strings.Contains(stderr.String(), "usage:") && stdout.Len() <= 0,
				"exit code %d, stdout %q, stderr %q", code, &stdout, &stderr)
		})
	}
}

// TestDocument compares the document with its summary, and with the specs that no group runs.
func TestDocument(t *testing.T) {
	data := testkit.Must(os.ReadFile("specs.md"))(t)
	document := string(data)
	summary := testkit.Must(loadSummary("specs.json"))(t)
	testkit.Check(t, len(summary.Runs) != 0, "the summary has no runs")
	want := testkit.Must(summary.in(document))(t)
	testkit.Check(t, document == want,
		"specs.md differs from specs.json: run make test-k8s-table")
	for _, r := range reasons {
		row := "| `" + strings.ReplaceAll(r[0], "|", `\|`) + "` | " + r[1] + " |"
		testkit.Check(t, strings.Contains(document, row), "specs.md lacks the row %s", row)
	}
}
