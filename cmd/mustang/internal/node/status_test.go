// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath"
	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

// TestNetkitIsAFeature requires that the name in the table is the name of a feature.
func TestNetkitIsAFeature(t *testing.T) {
	if !slices.ContainsFunc(objects.Features(""), func(f objects.Feature) bool { return f.Name == netkitFeature }) {
		t.Errorf("there is no feature %q", netkitFeature)
	}
}

// TestConnectionsFull fills a small connection table up to 80 % and beyond, with open connections and with ones that
// expired. All are of one client.
func TestConnectionsFull(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	root := testkit.BPFFS(t) + "/root"
	d := testkit.Must(datapath.Open(t.Context(), datapath.Options{Root: root, Sizes: objects.Sizes{Connections: 1024}}))(t)
	defer d.Close()
	o := testkit.Must(objects.Open(root))(t)
	defer o.Close()
	var now unix.Timespec
	testkit.Succeed(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	for _, c := range []struct {
		state, count uint32
		open         int64
		warns        bool
	}{
		{objects.SlotOpen, 400, 400, false}, {objects.SlotOpen, 819, 819, false}, {objects.SlotOpen, 820, 820, true},
		{objects.SlotClosed, 820, 0, false}, {objects.SlotOpen, 1024, 1024, true},
	} {
		for i := range c.count {
			testkit.Succeed(t, o.Slots.Map.Put(i, objects.Slot{State: c.state, Seen: uint64(now.Nano())}))
		}
		testkit.Succeed(t, o.NodeState.ClientConns(func(conns []uint64) { conns[65536] = uint64(c.count) }))
		r := testkit.Must(readStatus(t.Context(), root))(t)
		warns, share := false, false
		for _, f := range r.Findings {
			share = share || strings.Contains(f.What, fmt.Sprintf("clients outside: %d open connections", c.open))
			warns = warns || strings.Contains(f.What, fmt.Sprintf("%d open of 1024 slots", c.open))
		}
		for _, m := range r.Maps {
			testkit.Check(t, m.Name != "slots" || m.Rows == c.open && m.Size == 1024, "%+v: map %+v", c, m)
		}
		testkit.Check(t, warns == c.warns && share == (c.open > 500), "%+v: findings %+v", c, r.Findings)
	}
}

// TestWriteStatus prints loaded objects, and missing ones with a remedy, and leaves out sections without a problem.
func TestWriteStatus(t *testing.T) {
	for name, test := range map[string]struct {
		report statusReport
		want   string
	}{
		"nothing": {statusReport{Root: "/bpf"}, "/bpf: nothing is loaded\nproblems  0\n"},
		"drops": {
			statusReport{Root: "/bpf", Pins: objects.Pins{Layouts: []string{"v7"}}, Pods: 2, Services: 1, counted: true,
				Drops: []flows.Counter{{Name: "drop_ttl"}, {Name: "drop_rewrite", Packets: 3, Meaning: "why"}}},
			"pods      2\nservices  1\npolicies  0\ndropped   3 packets\nproblems  0\n\n" +
				"DROPPED       PACKETS  MEANING\ndrop_rewrite  3        why\n",
		},
		"features": {
			statusReport{Root: "/bpf", Pins: objects.Pins{Layouts: []string{"v6", "v7"}}, Features: []feature{
				{Name: "tcx"}, {Name: "XDP", Needs: "Linux 4.8", Missing: "not here"}, {Name: "netkit programs",
					Missing: "not asked for"},
			}, Findings: []finding{{What: "a map is full", Do: "a larger one"}}},
			"/bpf: maps of layout v6, v7\nproblems  1\n  a map is full (what helps: a larger one)\n" +
				"\nMISSING FEATURE  NEEDS      REASON\nXDP              Linux 4.8  not here\n",
		},
		"problems": {
			statusReport{Root: "/bpf", Findings: []finding{{What: "a", Do: "b"}, {What: "c", Do: "d"}}},
			"/bpf: nothing is loaded\nproblems  2\n  a (what helps: b)\n  c (what helps: d)\n",
		},
	} {
		var out strings.Builder
		if err := writeStatus(&out, &test.report, "wide"); err != nil || out.String() != test.want {
			t.Errorf("%s: %v:\n%s\nwant:\n%s", name, err, out.String(), test.want)
		}
	}
}

// TestFilterFlags parses ends of connections in all forms.
func TestFilterFlags(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "10.0.0.1:0", "10.0.0.1:80": "10.0.0.1:80", "fd00::1": "[fd00::1]:0", "[fd00::1]": "[fd00::1]:0",
		"[fd00::1]:80":    "[fd00::1]:80",
		"::ffff:10.0.0.1": "10.0.0.1:0", "[::ffff:10.0.0.1]:80": "10.0.0.1:80",
		"10.0.0.1:": "", "10.0.0.1:0": "", "10.0.0.1:65536": "", ":80": "", "host": "", "10.0.0.0/8": "", "[fd00::1": "",
		"fd00::1]": "", "[fd00::1]80": "",
	} {
		end, err := parseEnd(text)
		if got := end.String(); (err != nil) != (want == "") || err == nil && got != want {
			t.Errorf("%q is %s, want %q; %v", text, got, want, err)
		}
	}
}

// TestDirectHasNoService lists a connection to a service, and one that is direct.
func TestDirectHasNoService(t *testing.T) {
	c := connectionJSON{Client: "10.0.0.1:4000", Source: "10.0.0.1:4000", Service: "10.96.0.1:80",
		Backend: "10.0.0.2:8080", ServiceID: 1}
	row := connectionTable.Row(c)
	testkit.Check(t, row[3] == c.Service && row[4] == "", "%q", row)
	c.ServiceID = 0
	row = connectionTable.Row(c)
	testkit.Check(t, row[3] == "", "a direct connection: %q", row)
}
