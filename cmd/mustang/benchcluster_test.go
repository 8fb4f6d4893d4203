// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/kube/kubetest"
)

// TestClusterImageIsTheCharts compares the default image with that of the chart.
func TestClusterImageIsTheCharts(t *testing.T) {
	var chart struct {
		AppVersion string `yaml:"appVersion"`
	}
	var values struct {
		Image struct{ Repository string }
	}
	for name, into := range map[string]any{"Chart.yaml": &chart, "values.yaml": &values} {
		text, err := os.ReadFile("../../packaging/chart/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}
	if want := "docker.io/library/" + values.Image.Repository + ":" + chart.AppVersion; clusterImage != want {
		t.Errorf("the image is %s, the chart's %s", clusterImage, want)
	}
}

// TestBenchClusterErrors holds exit codes and reasons of what cannot be measured.
func TestBenchClusterErrors(t *testing.T) {
	empty := kubetest.Start(t).Kubeconfig(t)
	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"--nodes a,b,c", "--nodes: want one node or two", exitMisuse},
		{"--nodes a,a", "--nodes: a twice", exitMisuse},
		{"--only veth", "no such row in cluster", exitMisuse},
		{"--workload ping", "ping", exitMisuse},
		{"--time 0s", "--time 0s: want", exitMisuse},
		{"-o yaml", "yaml", exitMisuse},
		{"pod-links", "unexpected argument", exitMisuse},
		{"--kubeconfig /no/such/file", "/no/such/file", exitFailed},
		{"--kubeconfig /dev/zero", "--kubeconfig /dev/zero: want a regular file", exitFailed},
		{"--context other --kubeconfig " + empty, "other", exitFailed},
		{"--kubeconfig " + empty, "no node takes pods: the cluster has none", exitFailed},
	} {
		var stderr bytes.Buffer
		env := cli.Environment{Stdin: strings.NewReader(""), Stdout: &stderr, Stderr: &stderr, Getenv: func(string) string { return "" }}
		args := append([]string{"bench", "cluster", "--out", t.TempDir()}, strings.Fields(c.args)...)
		if code := run(t.Context(), env, args); code != c.code || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("bench cluster %s: exit code %d, %s; want %d, %s", c.args, code, &stderr, c.code, c.want)
		}
	}
}
