// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/kept"
	"mustang/internal/datapath/objects"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// statusDocument is the part of status -o json that the tests read.
type statusDocument struct {
	Schema   int
	Layouts  []string
	Programs []struct {
		Program  string
		ID       uint32
		Current  bool `json:"current_build"`
		Attached int
	}
	Links []struct{ Name string }
	Maps  []struct {
		Name, Kind string
		Rows, Size int64
		Bytes      uint64
	}
	Drops    []struct{ Name string }
	Features []struct{ Name string }
	Problems []struct{ What, Do string }
}

// status runs mustang status and fails the test unless exactly the findings with these words are there.
func (n *killNetwork) status(words ...string) (r statusDocument) {
	n.t.Helper()
	env := map[string]string{cli.EnvBPFRoot: n.root}
	code, stdout, stderr := command(n.t, env, "status", "-o", "json")
	err := json.Unmarshal([]byte(stdout), &r)
	testkit.Require(n.t, err == nil, "%v: %s", err, stderr)
	want := exitDone
	if len(words) > 0 {
		want = exitFailed
	}
	testkit.Require(n.t, code == want && len(r.Problems) == len(words),
		"exit code %d, problems %q; want %q", code, r.Problems, words)
	for i, word := range words {
		testkit.Check(n.t, strings.Contains(r.Problems[i].What, word) && r.Problems[i].Do != "" &&
			!strings.Contains(r.Problems[i].What+r.Problems[i].Do, "\n"),
			"problem %q, want one line with %q", r.Problems[i], word)
	}
	code, table, _ := command(n.t, env, "status")
	testkit.Check(n.t, code == want && strings.Count(table, "what helps") == len(words),
		"exit code %d, table\n%s", code, table)
	return r
}

// tables changes rows as a killed command or another program would.
func (n *killNetwork) tables(change func(*objects.Objects) error) {
	n.t.Helper()
	o, err := objects.Open(n.root)
	if err == nil {
		defer o.Close()
		err = change(o)
	}
	testkit.Succeed(n.t, err)
}

func (n *killNetwork) pin(pattern string) string {
	n.t.Helper()
	found, err := filepath.Glob(filepath.Join(n.root, "v*", pattern))
	testkit.Require(n.t, err == nil && len(found) != 0, "no pin %q: %v", pattern, err)
	return found[0]
}

func (n *killNetwork) remove(pattern string) {
	n.t.Helper()
	testkit.Succeed(n.t, os.Remove(n.pin(pattern)))
}

// everything is a state with each kind of attachment.
var everything = []string{addPods, addService, "uplink add wire --netns=HOST",
	"socket attach --cgroup=CGROUP --netns=HOST"}

// TestStatus reads a sound datapath, and changes nothing.
func TestStatus(t *testing.T) {
	n := newKillNetwork(t)
	r := n.status()
	testkit.Check(t, len(r.Layouts) == 0 && len(r.Features) != 0, "nothing is loaded: %+v", r)
	_, err := os.Stat(n.root)
	testkit.Check(t, os.IsNotExist(err), "status made the root: %v", err)
	n.runAll(everything)
	before := n.state()
	r = n.status()
	testkit.Check(t, r.Schema == 1, "schema %d", r.Schema)
	after := n.state()
	testkit.Check(t, after == before, "status changed\n%s\nto\n%s", before, after)
	attached := map[string]int{}
	for _, p := range r.Programs {
		attached[p.Program] = p.Attached
		testkit.Check(t, p.Current && p.ID != 0, "program %+v", p)
	}
	for program, want := range map[string]int{"host-from_pod": 2, "host-to_pod": 2, "uplink-from_uplink": 1,
		"connect4": 1} {
		testkit.Check(t, attached[program] == want, "%s is attached %d times, want %d", program, attached[program], want)
	}
	rows := map[string]int64{}
	for _, m := range r.Maps {
		rows[m.Name] = m.Rows
		testkit.Check(t, m.Kind != "Hash" || m.Size != 0 && m.Bytes != 0, "map %+v", m)
	}
	testkit.Check(t, rows["endpoints"] == 2 && rows["backends"] == 1 && len(r.Links) == 2*2+2+8 && len(r.Drops) != 0,
		"rows %v, %d links, %d drops", rows, len(r.Links), len(r.Drops))
}

// TestStatusFindsProblems breaks one thing at a time. The same commands again fix it, in an empty root if necessary.
func TestStatusFindsProblems(t *testing.T) {
	t.Parallel()
	n := newKillNetwork(t)
	n.runAll(everything)
	n.status()
	const anotherLayout = "maps have layout v1" // which commands refuse to change
	for _, c := range []struct {
		name     string
		breakIt  func(*killNetwork)
		findings []string
	}{
		{"program of an endpoint", func(n *killNetwork) { n.remove("links/1-host-to_pod") },
			[]string{"endpoint 1 (192.168.10.10) lacks program to_pod"}},
		{"programs of an endpoint", func(n *killNetwork) {
			n.remove("links/1-host-to_pod")
			n.remove("links/1-host-from_pod")
		}, []string{"endpoint 1 (192.168.10.10) lacks programs"}},
		{"program of an uplink", func(n *killNetwork) { n.remove("links/uplink-*-from_uplink") },
			[]string{"lacks program from_uplink"}},
		{"program of a control group", func(n *killNetwork) { n.remove("links/cgroup-*-connect6") },
			[]string{"lacks program connect6"}},
		{"row of an endpoint", func(n *killNetwork) {
			n.tables(func(o *objects.Objects) error {
				for row, err := range o.Endpoints.All() {
					if err != nil || row.Value.Id == 2 {
						return o.Endpoints.Delete(row.Key)
					}
				}
				return nil
			})
		}, []string{"from_pod of endpoint 2", "to_pod of endpoint 2", "source guard of device", "socket translation"}},
		{"change not done", func(n *killNetwork) {
			n.tables(func(o *objects.Objects) error {
				state, err := o.NodeState.IDs()
				state.Retiring = state.LastRevision
				if err != nil {
					return err
				}
				return o.NodeState.PutIDs(state)
			})
		}, []string{"backends that services no longer have"}},
		{"unload not done", func(n *killNetwork) {
			testkit.Succeed(n.t, os.Mkdir(filepath.Dir(n.pin("maps"))+objects.UnloadedSuffix, 0o700))
		}, []string{"killed process left pins"}},
		{"another layout", func(n *killNetwork) {
			testkit.Succeed(n.t, os.Mkdir(filepath.Join(n.root, "v1"), 0o700))
		}, []string{anotherLayout}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := *n
			n.t = t
			c.breakIt(&n)
			n.status(c.findings...)
			if c.findings[0] == anotherLayout {
				n.run("datapath unload")
			}
			n.runAll(everything)
			n.status()
		})
	}
}

// TestStatusOfFullMap fills most of a map, and most of the trie of source ranges.
func TestStatusOfFullMap(t *testing.T) {
	n := newKillNetwork(t)
	const size = 2*service.MaxSourceRanges + 8
	sizes := objects.Sizes{Services: 6, SourceRanges: size, Connections: 64}
	d := testkit.Must(datapath.Open(t.Context(), datapath.Options{Root: n.root, Sizes: sizes}))(t)
	defer d.Close()
	fill := func(frontend string, ranges int) {
		t.Helper()
		s := service.Service{Frontend: netip.MustParseAddrPort(frontend), Protocol: service.TCP,
			Backends: service.Backends(netip.MustParseAddrPort("192.168.10.99:1"))}
		for addr := netip.MustParseAddr("20.0.0.0"); len(s.SourceRanges) < ranges; addr = addr.Next() {
			s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(addr, 32))
		}
		_, _, err := d.Services().Put(t.Context(), service.CLI, s)
		testkit.Require(t, err == nil, "%v", err)
	}
	fill("10.96.0.1:81", service.MaxSourceRanges)
	fill("10.96.0.1:82", size*8/10-1-service.MaxSourceRanges)
	n.status()
	fill("10.96.0.1:83", 1)
	ranges := fmt.Sprintf("map source_ranges has %d of %d rows", size*8/10, size)
	n.status(ranges)
	fill("10.96.0.1:84", 0)
	n.status(ranges)
	fill("10.96.0.1:85", 0)
	n.status("map services has 5 of 6 rows", ranges)
}

// TestStatusOfParent has an ipvlan pod whose parent drops packets by their source.
func TestStatusOfParent(t *testing.T) {
	n := newKillNetwork(t)
	n.root = kept.Root(t)
	mode := testkit.Must(podlink.Lookup("ipvlan-l2"))(t)
	testkit.RequireMode(t, mode.Probe())
	pod := testkit.Namespace(t, "ipvlan")
	n.ip("-n HOST link set wire up")
	n.ip("-n HOST link add link wire name eth0 netns " + filepath.Base(pod.Name()) + " type ipvlan mode l2")
	n.ip("-n " + filepath.Base(pod.Name()) + " addr add 192.168.30.10/24 dev eth0")
	n.ip("-n " + filepath.Base(pod.Name()) + " link set eth0 up")
	n.run("ep add --netns=" + filepath.Base(pod.Name()) + " --host-netns=HOST")
	for value, words := range map[string][]string{"0": nil, "1": {"rp_filter of wire is strict"}, "2": nil} {
		testkit.Succeed(t, rtnl.In(n.host).SetSysctl("net/ipv4/conf/wire/rp_filter", value))
		n.status(words...)
	}
}
