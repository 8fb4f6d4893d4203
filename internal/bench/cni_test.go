// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// buildPlugin puts mustang-cni where the suite looks for it: beside this program,
// in the directory that go test made for it.
func buildPlugin(t *testing.T) {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(filepath.Dir(own), mustangCNI), "mustang/cmd/mustang-cni")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
}

func cniOptions(t *testing.T, only ...string) Options {
	t.Helper()
	testkit.RequireTool(t, "/usr/lib/cni/bridge")
	o := testOptions(t, only...)
	o.Suites, o.Quick, o.Rounds, o.Duration = []Suite{cni()}, true, 2, 0
	return o
}

// wantNothingLeft checks that a run left its result file and nothing else.
func wantNothingLeft(t *testing.T, o Options) {
	t.Helper()
	for _, dir := range []string{o.Out, filepath.Join(o.Store.Dir, "labs")} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Error(err)
		}
		for _, entry := range entries {
			if entry.Name() != ResultsName {
				t.Errorf("left: %s", filepath.Join(dir, entry.Name()))
			}
		}
	}
}

// TestCNI measures every row of the suite.
func TestCNI(t *testing.T) {
	o := cniOptions(t)
	buildPlugin(t)
	before := testkit.RootSnapshot(t)
	file, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if testkit.RootSnapshot(t) != before {
		t.Error("the root namespace is not as it was")
	}
	wantNothingLeft(t, o)
	if len(file.Rows) != len(o.Suites[0].Rows()) || file.Run.DurationSeconds != 0 {
		t.Errorf("%d rows, want %d; duration %g", len(file.Rows), len(o.Suites[0].Rows()), file.Run.DurationSeconds)
	}
	for _, row := range file.Rows {
		if row.Status != result.StatusOK || len(row.Samples) != o.Rounds {
			t.Errorf("%s: %s %s, %d samples", label(row), row.Status, row.Reason, len(row.Samples))
			continue
		}
		calls, atOnce := quickCallsInTurn*o.Rounds, row.Flows == quickCallsAtOnce
		if atOnce {
			calls = quickCallsAtOnce * o.Rounds
		}
		a := row.Evidence.Attachments
		if a == nil || a.Added != calls || a.Removed != calls || !strings.HasPrefix(a.Reached, "10.") || len(row.Evidence.Devices) == 0 {
			t.Errorf("%s: evidence %+v, devices %v, want %d calls", label(row), a, row.Evidence.Devices, calls)
		}
		if row.Unit != result.UnitMilliseconds || row.Median <= 0 || row.LatencyUS == nil || row.LatencyUS.P99 < row.LatencyUS.P50 ||
			(row.CallsPerSecond > 0) != atOnce {
			t.Errorf("%s: median %g %s, latency %v, %g a second", label(row), row.Median, row.Unit, row.LatencyUS, row.CallsPerSecond)
		}
	}
	// Six with services against none, two against their like, twelve against the
	// reference, under four workloads.
	if got, want := len(file.Run.Comparisons), 4*(6+2+12); got != want {
		t.Errorf("%d comparisons, want %d", got, want)
	}
}

// TestCNILies runs plugins that don't do what they say. They fail, and the honest
// one beside them does not.
func TestCNILies(t *testing.T) {
	for name, test := range map[string]struct{ script, reason string }{
		"error": {`printf '{"code": 999, "msg": "no way", "details": "at all"}'; exit 1`, "ADD: no way at all"},
		"crash": {`echo broken >&2; exit 3`, "exit status 3: broken"},
		"no attachment": {`[ $CNI_COMMAND = ADD ] && echo '{"ips": [{"address": "10.80.0.9/16", "gateway": "10.80.0.1"}]}'; true`,
			"eth0"},
		"another address": {`honest | sed 's/"10.80.0.\([0-9]*\)\/16"/"10.80.9.\1\/16"/'`, "the result says 10.80.9."},
		"no result":       {`honest >/dev/null`, "result of ADD"},
		"no gateway":      {`honest && nsenter --net=$CNI_NETNS ip route replace unreachable 10.80.0.1`, "can't reach its gateway"},
		"DEL does nothing": {`[ $CNI_COMMAND = DEL ] || honest`,
			"has 2 devices after DEL, and had 1"},
		"DEL keeps the address": {`if [ $CNI_COMMAND = DEL ]; then nsenter --net=$CNI_NETNS ip link del eth0; else honest; fi`,
			"is reserved after DEL"},
		"DEL leaves a device": {`honest; [ $CNI_COMMAND = ADD ] || ip link add left type veth peer name right`,
			"the host has veth right after DEL"},
	} {
		t.Run(name, func(t *testing.T) {
			o := cniOptions(t, "liar", "bridge cni_add")
			testkit.RequireTool(t, "nsenter")
			script := filepath.Join(t.TempDir(), "liar")
			text := "#!/bin/sh\nhonest() { /usr/lib/cni/bridge; }\n" + test.script + "\n"
			if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
			honest := o.Suites[0].paths[0]
			liar, plugin := honest, *honest.plugin
			liar.id, plugin.path = "liar", script
			liar.plugin = &plugin
			o.Suites[0].paths = []path{liar, honest}
			o.Suites[0].pairs = nil
			file, err := Run(context.Background(), o)
			if err != nil {
				t.Fatal(err)
			}
			wantNothingLeft(t, o)
			for _, row := range file.Rows {
				switch {
				case row.ID != liar.id && row.Status != result.StatusOK:
					t.Errorf("%s: %s %s", label(row), row.Status, row.Reason)
				case row.ID == liar.id && (row.Status != result.StatusFailed || !strings.Contains(row.Reason, test.reason)):
					t.Errorf("%s: %s %q, want failed with %q", label(row), row.Status, row.Reason, test.reason)
				}
			}
		})
	}
}

// TestCNIMissing checks that a program that is not there is said to be missing, with
// its package or the command that makes it.
func TestCNIMissing(t *testing.T) {
	p := referenceBridge()
	p.program = "nothing-of-that-name"
	if err := p.probe(); err == nil || !strings.Contains(err.Error(), "containernetworking-plugins") {
		t.Errorf("reference: %v", err)
	}
	p = mustangPlugin("veth", servicesOff)
	p.path = filepath.Join(t.TempDir(), mustangCNI)
	if err := p.probe(); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("own: %v", err)
	}
}

// TestCNIInterrupt ends a run while plugins run.
func TestCNIInterrupt(t *testing.T) {
	for _, at := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			o := cniOptions(t, "bridge cni_add", "ptp")
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			samples := 0
			o.Progress = quiet{func() {
				if samples++; samples == at {
					go cancel()
				}
			}}
			if _, err := Run(ctx, o); !errors.Is(err, ErrInterrupted) {
				t.Errorf("error %v, want ErrInterrupted", err)
			}
			wantNothingLeft(t, o)
		})
	}
}

// TestCNIOptions checks what the options make of the suite.
func TestCNIOptions(t *testing.T) {
	flows := func(o Options) (out []string) {
		for _, w := range o.workloads(o.Suites[0]) {
			out = append(out, w.String())
		}
		return out
	}
	o := Options{Suites: []Suite{cni()}}
	if got := fmt.Sprint(flows(o)); got != "[cni_add cni_del cni_add-100 cni_del-100]" {
		t.Error(got)
	}
	if o.timed() {
		t.Error("calls last as long as the options say")
	}
	o.Quick = true
	if got := fmt.Sprint(flows(o)); got != "[cni_add cni_del cni_add-20 cni_del-20]" {
		t.Error(got)
	}
	o.Count = result.ClockInstructions
	for _, c := range o.cells() {
		if err := o.missing(c.path); !errors.Is(err, errNotCounted) {
			t.Errorf("%s is counted: %v", c.path.id, err)
		}
	}
	if o := (Options{Suites: []Suite{podLinks(), cni()}}); !o.timed() {
		t.Error("nothing lasts as long as the options say")
	}
	names := map[string]bool{}
	for _, p := range cni().paths {
		config, err := p.plugin.config(lab.PluginDirs{State: "/state"}, nil)
		if err != nil || strings.Contains(p.plugin.network, "+") {
			t.Errorf("%s: %s, %v", p.id, config, err)
		}
		names[p.plugin.network+p.plugin.subnet.String()] = true
	}
	if len(names) != len(cni().paths)-1 { // one is measured twice
		t.Errorf("%d networks", len(names))
	}
}
