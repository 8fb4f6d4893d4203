// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mustang/internal/bench"
	"mustang/internal/bench/suites"
	"mustang/internal/kube/kubetest"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// TestSuites measures the suites with two hosts, containers and virtual machines. Paths that this kernel lacks are
// skipped; all others pass. The long form measures every row in two rounds, the short form rows of shortForm in one.
func TestSuites(t *testing.T) {
	t.Parallel()
	testkit.NotInGuest(t)
	testkit.RequireRoot(t)
	for _, tool := range []string{"dockerd", "ovs-vswitchd", "qemu-system-x86_64", "/usr/lib/cni/bridge"} {
		testkit.RequireTool(t, tool)
	}
	program := staticProgram(t, "mustang")
	own := testkit.Must(os.Executable())(t) // this process expects the plugin beside itself
	beside := filepath.Join(filepath.Dir(own), "mustang-cni")
	_ = os.Remove(beside)
	testkit.Succeed(t, os.Symlink(staticProgram(t, "mustang-cni"), beside))
	for _, suite := range suites.List() {
		if suite.Name == suites.Default || suite.Name == "services" {
			continue // package bench tests it
		}
		t.Run(suite.Name, func(t *testing.T) {
			if short() {
				suite.Paths = shortForm(suite)
			}
			before := testkit.RootSnapshot(t)
			out, state := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "state")
			rounds := strconv.Itoa(testkit.Repeats(1, 2))
			args := []string{"bench", suite.Name, "--quick", "--rounds", rounds, "--slice", "5ms", "--out", out}
			for _, p := range suite.Paths {
				args = append(args, "--only", p.ID)
			}
			cmd := exec.CommandContext(t.Context(), program, args...)
			cmd.Env = append(os.Environ(), envStateDir+"="+state)
			text, err := cmd.CombinedOutput()
			testkit.Check(t, err == nil, "bench %s: %v\n%s", suite.Name, err, text)
			checkSuite(t, suite, out)
			testkit.Check(t, testkit.RootSnapshot(t) == before, "the root namespace has changed")
			left, err := os.ReadDir(filepath.Join(state, "labs"))
			testkit.Check(t, err == nil && len(left) == 0, "labs left: %v, %v", left, err)
		})
	}
}

// shortForm returns paths of a suite: one with virtual machines, each of which takes seconds to boot; of cni, whose
// rows package bench tests, one foreign plugin and ours; of policy the paths with one rule; of two-cpus and
// pod-links-ipv6 the paths that other suites lack; with iptables, pod-links-ipv6 keeps veth alone. TestConformance of
// package lab has each link with each family and implementation.
func shortForm(suite suites.Suite) []suites.Path {
	keep := []string{"ptp", "mustang-veth+agent", "two-hosts/bridge/vm"}
	own := map[string]string{"two-cpus": "@2cpus", "pod-links-ipv6": "/ipv6/"}[suite.Name]
	return slices.DeleteFunc(slices.Clone(suite.Paths), func(p suites.Path) bool {
		return p.Lab.PolicyRules > 1 || !strings.Contains(p.ID, own) ||
			suite.Name == "pod-links-ipv6" && strings.HasSuffix(p.ID, "/iptables") && !strings.HasPrefix(p.ID, "veth/") ||
			(p.Lab.Guests || suite.Name == "cni") && !slices.Contains(keep, strings.TrimSuffix(p.ID, "/again"))
	})
}

// probed returns the reasons why this machine cannot measure paths of a suite, by ID.
func probed(suite suites.Suite) map[string]error {
	reasons := map[string]error{}
	for _, p := range suite.Paths {
		if err := p.Probe(); err != nil {
			reasons[p.ID] = err
		}
	}
	return reasons
}

// checkSuite checks that the latest result below a directory has all rows of a suite, measured, or skipped for
// the reason that the suite's probe gives.
func checkSuite(t *testing.T, suite suites.Suite, path string) {
	t.Helper()
	file := testkit.Must(readResults(path))(t)
	checkSchema(t, path)
	want := len(testkit.Must(bench.Options{Suites: []suites.Suite{suite}, All: true}.Rows())(t))
	testkit.Check(t, len(file.Rows) == want, "%d rows, want %d", len(file.Rows), want)
	unsupported := probed(suite)
	for _, row := range file.Rows {
		reason := unsupported[row.ID]
		switch {
		case reason != nil && row.Status == result.StatusSkipped && row.Reason == reason.Error():
		case reason != nil || row.Status != result.StatusOK || len(row.Samples) != file.Run.Rounds:
			t.Errorf("%v: %s %s, %d samples (%v)", row.Key(), row.Status, row.Reason, len(row.Samples), reason)
		case row.Workload == result.WorkloadUDPStream && row.Offered <= 0:
			t.Errorf("%v: offered nothing", row.Key())
		case len(row.Evidence.Devices) == 0:
			t.Errorf("%v: no evidence", row.Key())
		}
	}
}

// TestHelpOfSuites reads the list of suites in the help: it has two columns, and no flag that only other commands set.
func TestHelpOfSuites(t *testing.T) {
	_, help, _ := command(t, nil, "bench", "--help")
	columns := map[int]bool{}
	for _, suite := range suites.List() {
		for line := range strings.Lines(help) {
			if strings.HasPrefix(line, "  "+suite.Name+" ") {
				columns[strings.Index(line, suite.Doc)] = true
			}
		}
	}
	testkit.Check(t, len(columns) == 1 && !columns[-1], "texts of suites begin in columns %v:\n%s", columns, help)
	_, helpOfExplain, _ := command(t, nil, "explain", "--help")
	testkit.Check(t, !strings.Contains(help+helpOfExplain, "set by --vm"),
		"an internal flag is in the help:\n%s%s", help, helpOfExplain)
}

// TestAdviceLabs measures the labs of advices: traffic takes the paths that the rows claim.
func TestAdviceLabs(t *testing.T) {
	testkit.NotInGuest(t)
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "nft")
	testkit.RequireTool(t, "iptables")
	cmd := exec.CommandContext(t.Context(), staticProgram(t, "mustang"), adviseLabsCommand,
		`{"link": "bridge", "proxy": "iptables", "overlay": "vxlan", "services": 20}`, "15s")
	cmd.Env = append(os.Environ(), envStateDir+"="+filepath.Join(t.TempDir(), "s"))
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	testkit.Require(t, err == nil, "%v: %s", err, errs.String())
	var file result.File
	testkit.Succeed(t, json.Unmarshal(out, &file))
	for _, row := range file.Rows {
		testkit.Check(t, row.Status != result.StatusFailed, "%s %s: %s", row.ID, row.Workload, row.Reason)
	}
	testkit.Check(t, len(file.Rows) == 3*12, "%d rows", len(file.Rows))
}

// TestAdviceWithoutPods has a cluster that refuses the namespace of bench: the advice still says what would break.
func TestAdviceWithoutPods(t *testing.T) {
	api := kubetest.Start(t)
	api.Put(t, nodeList, `{"metadata": {"name": "one"}, "status": {"nodeInfo": {"kernelVersion": "6.1.0", "architecture": "amd64"},
		"conditions": [{"type": "Ready", "status": "True"}]}}`)
	api.Put(t, "/api/v1/namespaces", `{"metadata": {"name": "mustang-bench"}}`)
	code, stdout, stderr := command(t, nil, "advise", "--kubeconfig", api.Kubeconfig(t), "--link", "bridge", "--proxy", "none",
		"--overlay", "none", "--out", t.TempDir())
	testkit.Check(t, code == exitFailed && strings.Contains(stderr, "kubectl delete namespace mustang-bench"),
		"exit code %d: %s", code, stderr)
	for _, want := range []string{"Not predicted: the cluster was not measured.", "older than 6.6: refused: one (6.1.0)"} {
		testkit.Check(t, strings.Contains(stdout, want), "the advice lacks %q: %s", want, stdout)
	}
}
