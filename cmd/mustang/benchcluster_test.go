// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"mustang/internal/kube/kubetest"
	"mustang/internal/testkit"
)

// TestClusterImageIsTheCharts compares the default image with the image of the chart.
func TestClusterImageIsTheCharts(t *testing.T) {
	var chart struct {
		AppVersion string `yaml:"appVersion"`
	}
	var values struct {
		Image struct{ Repository string }
	}
	for name, into := range map[string]any{"Chart.yaml": &chart, "values.yaml": &values} {
		text := testkit.Must(os.ReadFile("../../packaging/chart/" + name))(t)
		testkit.Succeed(t, yaml.Unmarshal(text, into))
	}
	want := "docker.io/library/" + values.Image.Repository + ":" + chart.AppVersion
	testkit.Check(t, clusterImage == want, "the image is %s, the chart's %s", clusterImage, want)
}

// TestBenchClusterNeedsNodes has a cluster without nodes, and a kubeconfig without the context.
func TestBenchClusterNeedsNodes(t *testing.T) {
	empty := kubetest.Start(t).Kubeconfig(t)
	for context, want := range map[string]string{"": "no node takes pods: the cluster has none", "other": "other"} {
		args := []string{"bench", "cluster", "--out", t.TempDir(), "--kubeconfig", empty, "--context", context}
		if code, _, stderr := command(t, nil, args...); code != exitFailed || !strings.Contains(stderr, want) {
			t.Errorf("context %q: exit code %d, %s; want %s", context, code, stderr, want)
		}
	}
}
