// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/testkit"
)

// completed returns the completions of a line that ends in its last argument.
func completed(t *testing.T, env map[string]string, line ...string) []string {
	t.Helper()
	code, stdout, stderr := command(t, env, append([]string{"__completeNoDesc"}, line...)...)
	testkit.Require(t, code == exitDone, "%q: exit code %d: %s", line, code, stderr)
	words := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	return words[:len(words)-1] // the last line is for the script of the shell
}

// TestCompletion completes suites, rows, links and formats.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"bench sw":                        "switching",
		"bench latency sw":                "switching",
		"bench latency lat":               "",
		"bench --only veth/cluster-ip/n":  "veth/cluster-ip/nftables",
		"bench --only tun/pod-ip/n":       "tun/pod-ip/nftables", // which only --all measures otherwise
		"bench latency --only macv":       "macvlan",
		"bench --workload udp":            "udp_stream udp_rr",
		"bench --engine sock":             "sockperf",
		"explain veth+ebpf/cl":            "veth+ebpf/cluster-ip",
		"explain latency macv":            "macvlan",
		"explain x --against veth+ebpf/c": "veth+ebpf/cluster-ip",
		"lab up two":                      "two-hosts",
		"lab up two-hosts two":            "",
		"lab up -f two-racks.yaml two":    "",
		"lab up -f two":                   "yaml yml",
		"lab up pod-links --link ipv":     "ipvlan-l2 ipvlan-l3 ipvlan-l3s",
		"lab up --via ebpf-s":             "ebpf-socket",
		"svc ls -o w":                     "wide",
		"report -o b":                     "benchfmt",
		"links -o t":                      "tree table",
		"monitor --verdict d":             "dropped denied",
		"svc add --choice m":              "maglev",
		"svc add --on-remove ":            "keep reset",
		"svc add --protocol s":            "sctp",
		"monitor --pod x":                 "",
		"compl":                           "completion",
	} {
		got := strings.Join(completed(t, nil, strings.Split(line, " ")...), " ")
		testkit.Check(t, got == want, "%q: %q, want %q", line, got, want)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code, stdout, _ := command(t, nil, "completion", shell)
		testkit.Check(t, code == exitDone && strings.Contains(stdout, "__complete"),
			"completion %s: exit code %d, %.200s", shell, code, stdout)
	}
}

var updateDrawings = flag.Bool("update-drawings", false, "rewrite the drawings of topologies in docs")

// TestDrawings builds topologies and holds the drawings in docs to them.
func TestDrawings(t *testing.T) {
	testkit.RequireRoot(t)
	for name, o := range map[string]lab.Options{
		"pod-links-veth":    {Topology: lab.TopologyPodLinks, Link: "veth", Datapath: lab.DatapathEBPF},
		"pod-links-bridge":  {Topology: lab.TopologyPodLinks, Link: "bridge", Datapath: lab.DatapathEBPF},
		"pod-links-macvlan": {Topology: lab.TopologyPodLinks, Link: "macvlan", Datapath: lab.DatapathEBPF},
		"two-hosts-vxlan": {Topology: lab.TopologyTwoHosts, Link: "bridge", Datapath: lab.DatapathKernel,
			Overlay: lab.OverlayVXLAN},
		"pod-to-host": {Topology: lab.TopologyPodToHost, Link: "veth", Datapath: lab.DatapathKernel},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			o.Name = "drawing" // it is in no drawing
			store := lab.Store{Dir: filepath.Join(dir, "state")}
			l := testkit.Must(store.Up(t.Context(), o))(t)
			defer func() { testkit.Succeed(t, l.Close()) }()
			code, drawn, stderr := command(t, map[string]string{envStateDir: store.Dir}, "links", "--lab", o.Name, "-o", "svg")
			testkit.Require(t, code == exitDone && stderr == "", "exit code %d: %s", code, stderr)
			path := filepath.Join("../../docs/drawings", name+".svg")
			if *updateDrawings {
				if err := os.WriteFile(path, []byte(drawn), 0o644); err != nil { //nolint:gosec // a page's picture
					t.Fatal(err)
				}
			}
			want := testkit.Must(os.ReadFile(path))(t)
			testkit.Check(t, string(want) == drawn,
				"%s is not what is drawn: go test ./cmd/mustang -run TestDrawings -update-drawings\n%s", path, drawn)
			info := testkit.Must(store.Find(o.Name))(t)
			for _, place := range store.Places(info) {
				testkit.Check(t, strings.Contains(drawn, ">"+place+"<"), "place %s is not drawn", place)
			}
		})
	}
}
