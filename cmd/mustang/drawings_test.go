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
			defer func() {
				err := l.Close()
				testkit.Check(t, err == nil, "%v", err)
			}()
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
