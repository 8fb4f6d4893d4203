// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"slices"
	"strings"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// TestSuitesNameExistingRows checks that IDs are unique, and that pairs name existing rows.
func TestSuitesNameExistingRows(t *testing.T) {
	for _, s := range List() {
		ids := map[string]bool{}
		for _, p := range s.Paths {
			testkit.Check(t, !ids[p.ID], "%s: %s appears twice", s.Name, p.ID)
			ids[p.ID] = true
		}
		again := 0
		for _, p := range s.Pairs {
			testkit.Check(t, ids[p.Numerator] && ids[p.Denominator],
				"%s: pair %q of %q and %q, at least one of them unknown", s.Name, p.Name, p.Numerator, p.Denominator)
			if p.AA {
				again++
			}
		}
		testkit.Check(t, again != 0, "%s: no A/A comparison", s.Name)
		testkit.Check(t, len(s.Workloads) != 0, "%s: no workloads", s.Name)
	}
	_, err := Lookup("nope")
	testkit.Check(t, err != nil, "Lookup found suite nope")
	all, err := Lookup(All)
	testkit.Check(t, err == nil && len(all) == len(List()), "all: %d suites, %v", len(all), err)
}

// TestCNIConfigurations checks that each path of suite cni has a valid network name, and a network of its own.
func TestCNIConfigurations(t *testing.T) {
	networks := map[string]string{}
	for _, p := range cni().Paths {
		network := p.Plugin.Network
		testkit.Check(t, network != "" && !strings.Contains(network, "+"), "%s: network %q", p.ID, network)
		first, ok := networks[p.Plugin.Subnet.String()]
		testkit.Check(t, !ok || p.Repeats == first, "%s and %s share %s", p.ID, first, p.Plugin.Subnet)
		networks[p.Plugin.Subnet.String()] = p.ID
		testkit.Check(t, p.Plugin.Gateway == lab.Host || p.Plugin.Gateway == lab.Outside,
			"%s: gateway %q", p.ID, p.Plugin.Gateway)
	}
}

// TestProxiedPaths checks that the paths through Docker's user-land proxy, which their notes
// name, have the noise of programs.
func TestProxiedPaths(t *testing.T) {
	found, err := Lookup("docker")
	testkit.Succeed(t, err)
	var proxied []string
	for _, p := range found[0].Paths {
		if p.ForwardsInUserSpace() != strings.HasPrefix(p.Note, "through Docker's user-land proxy") {
			t.Errorf("%s: forwards in user space %t, note %q", p.ID, p.ForwardsInUserSpace(), p.Note)
		}
		if p.ForwardsInUserSpace() {
			proxied = append(proxied, p.ID)
		}
	}
	want := []string{"published-port/localhost", "container-to-container/host-ip"}
	testkit.Check(t, slices.Equal(proxied, want), "%v, want %v", proxied, want)
}

// TestTrafficReplacesWorkloads checks the workloads of a suite with chosen traffic.
func TestTrafficReplacesWorkloads(t *testing.T) {
	for _, test := range []struct {
		traffic Traffic
		want    string
	}{
		{Traffic{}, "tcp_stream tcp_rr tcp_crr"},
		{Traffic{Workloads: []string{load.UDPRR, load.UDPStream}}, "udp_rr udp_stream"},
		{Traffic{Flows: 4}, "tcp_stream-4 tcp_rr tcp_crr"},
		{Traffic{Request: 100, Workloads: []string{load.TCPStream, load.TCPRR}}, "tcp_stream tcp_rr (100-byte requests)"},
		{Traffic{Response: 5, Workloads: []string{load.TCPCRR}}, "tcp_crr (5-byte responses)"},
		{Traffic{Direction: DirectionBoth, Workloads: []string{load.TCPStream}}, "tcp_stream tcp_stream (reverse)"},
		{Traffic{Direction: DirectionReverse, Flows: 2, Workloads: []string{load.TCPStream}}, "tcp_stream-2 (reverse)"},
		{Traffic{UnderLoad: true, Workloads: []string{load.TCPRR}}, "tcp_rr tcp_rr (50% load)"},
		{Traffic{UnderLoad: true, Rate: 9, Workloads: []string{load.TCPRR, load.TCPRR}}, "tcp_rr tcp_rr (9/s)"},
	} {
		got, err := test.traffic.Apply([]Suite{podLinks(), cni()})
		testkit.Succeed(t, err)
		var names []string
		for _, w := range got[0].Workloads {
			names = append(names, w.String())
		}
		text := strings.Join(names, " ")
		testkit.Check(t, text == test.want, "%+v: %s, want %s", test.traffic, text, test.want)
		testkit.Check(t, len(got[1].Workloads) == len(cni().Workloads), "the calls of plugins have changed")
	}
}

// TestTrafficNamesCulprit refuses traffic that makes no sense, or that no workload has.
func TestTrafficNamesCulprit(t *testing.T) {
	rr := []string{load.TCPRR}
	for want, traffic := range map[string]Traffic{
		`--workload "nope": want tcp_`:      {Workloads: []string{"nope"}},
		"-P, --flows 4: only streams":       {Workloads: rr, Flows: 4},
		"-P, --flows 65: want 1 to 64":      {Flows: 65},
		"-P, --flows -1: want 1 to 64":      {Flows: -1},
		`--direction "up": want forward`:    {Direction: "up"},
		`--direction "both": only a tcp_`:   {Workloads: rr, Direction: DirectionBoth},
		"--rate needs --latency-under-load": {Rate: 5},
		"--rate -3: want 1 to 10000000":     {UnderLoad: true, Rate: -3},
		"--request-size: invalid size -1":   {Request: -1},
		"--response-size: invalid size 23":  {Workloads: []string{load.UDPRR}, Response: 23},
		"no selected workload has reques":   {Workloads: []string{load.TCPStream}, Request: 5},
		"--request-size: invalid size 104":  {Request: 1<<20 + 1},
		"--request-size: invalid size 655":  {Workloads: []string{load.UDPRR}, Request: 65508},
	} {
		if _, err := traffic.Apply([]Suite{podLinks()}); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want %q", traffic, err, want)
		}
	}
	if _, err := (Traffic{Workloads: rr}).Apply(testkit.Must(Lookup("cni"))(t)); err == nil ||
		!strings.Contains(err.Error(), "suite cni carries no traffic: it takes no --workload") {
		t.Errorf("a suite that calls plugins carries traffic: %v", err)
	}
}

func rowsOf(s Suite) (rows []result.Row) {
	for _, w := range s.Workloads {
		for _, p := range s.Paths {
			if s.Has(p, w) {
				rows = append(rows, p.Row(s.Name, w))
			}
		}
	}
	return rows
}

func described(t *testing.T, name string, change func(*result.Row)) (result.Suite, []result.Row) {
	t.Helper()
	found, err := Lookup(name)
	testkit.Succeed(t, err)
	suite := found[0]
	rows := rowsOf(suite)
	for i := range rows {
		rows[i].Status, rows[i].Unit, rows[i].Samples, rows[i].Median = result.StatusOK, result.UnitGbit, []float64{1}, 1
		change(&rows[i])
		rows[i].Label = suite.Label(rows[i])
	}
	return suite.Describe(rows, false), rows
}

// TestDescriptionsNameExistingRows checks that each suite has a description that the result
// file takes, and that it names no row that the suite lacks.
func TestDescriptionsNameExistingRows(t *testing.T) {
	for _, suite := range List() {
		d, rows := described(t, suite.Name, func(*result.Row) {})
		f := result.File{Schema: result.Schema, Suites: []result.Suite{d}, Rows: rows}
		err := f.Validate()
		testkit.Check(t, err == nil, "%s: %v", suite.Name, err)
		if counted := suite.Describe(nil, true); counted.Question == d.Question || counted.Question == suite.Doc {
			t.Errorf("%s: question of counted instructions %q", suite.Name, counted.Question)
		}
		var named []string
		if d.Reference != "" {
			named = append(named, d.Reference)
		}
		for _, group := range d.Groups {
			named = append(named, group.Rows...)
		}
		for _, series := range d.Series {
			named = append(named, series.Rows...)
		}
		for _, st := range d.Statements {
			for _, p := range st.Pairs {
				named = append(named, p.Numerator, p.Denominator)
			}
		}
		for _, id := range named {
			testkit.Check(t, slices.ContainsFunc(rows, func(r result.Row) bool { return r.ID == id }),
				"%s: the description names %q, which is no row", suite.Name, id)
		}
	}
}

// TestSwitchingNamesDatapath checks that reports do not mix up the figures of Open vSwitch's slow datapath and of
// its kernel datapath.
func TestSwitchingNamesDatapath(t *testing.T) {
	for _, tc := range []struct {
		word  string
		rows  string
		noted bool
	}{
		{UserSpace, "/ovs", true},
		{UserSpace, "/ovs/veth", true},
		{wordKernel, "/ovs", false},
	} {
		d, _ := described(t, "switching", func(r *result.Row) {
			if strings.Contains(r.ID, tc.rows) {
				r.Variant = strings.TrimSpace(tc.word + " " + r.Variant)
			}
		})
		testkit.Check(t, (len(d.Notes) > 0) == tc.noted, "%s in %s: notes %q", tc.word, tc.rows, d.Notes)
	}
}

// TestRowPresentation checks the labels of rows, and the marks of rows that do not connect pods.
func TestRowPresentation(t *testing.T) {
	for _, tc := range []struct {
		suite, id, variant string // variant of the measured row, "" for the path's
		want               result.Row
	}{
		{"switching", "vxlan/ovs/vm", "kernel tcg", result.Row{Label: "vxlan/ovs/vm (tcg)"}},
		{"switching", "vxlan/ovs/veth", "tcgx", result.Row{}},
		{"latency", "host/again", "", result.Row{Baseline: true, Repeats: "host"}},
		{"docker", "host-mode", "", result.Row{}},
		{"interfaces", "loopback", "", result.Row{Baseline: true}},
		{"pod-links", "host-to-pod", "", result.Row{Baseline: true, Label: "host to pod"}},
		{"pod-links", "ovs-veth+ebpf/pod-ip", "kernel", result.Row{Label: "ovs-veth (kernel)+eBPF"}},
		{"pod-links", "ovs-internal/pod-ip", "user-space", result.Row{Label: "ovs-internal (user-space)"}},
		{"pod-links", "bridge-call-on/pod-ip", "", result.Row{}},
	} {
		found, err := Lookup(tc.suite)
		testkit.Succeed(t, err)
		rows := rowsOf(found[0])
		i := slices.IndexFunc(rows, func(r result.Row) bool { return r.ID == tc.id })
		if i < 0 {
			t.Errorf("%s: no row %s", tc.suite, tc.id)
			continue
		}
		r := rows[i]
		if tc.variant != "" {
			r.Variant = tc.variant
		}
		r.Label = found[0].Label(r)
		testkit.Check(t, r.Label == tc.want.Label && r.Baseline == tc.want.Baseline && r.Repeats == tc.want.Repeats,
			"%s: label %q, baseline %t, repeats %q", r.ID, r.Label, r.Baseline, r.Repeats)
	}
}
