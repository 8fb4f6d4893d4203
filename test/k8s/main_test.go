// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

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
	data := testkit.Must(os.ReadFile("../../docs/kubernetes-specs.md"))(t)
	document := string(data)
	summary := testkit.Must(loadSummary("../../docs/kubernetes-specs.json"))(t)
	testkit.Check(t, len(summary.Runs) != 0, "the summary has no runs")
	want := testkit.Must(summary.in(document))(t)
	testkit.Check(t, document == want,
		"docs/kubernetes-specs.md differs from docs/kubernetes-specs.json: run make test-k8s-table")
	for _, r := range reasons {
		row := "| `" + strings.ReplaceAll(r[0], "|", `\|`) + "` | " + r[1] + " |"
		testkit.Check(t, strings.Contains(document, row), "docs/kubernetes-specs.md lacks the row %s", row)
	}
}
