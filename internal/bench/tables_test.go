// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mustang/internal/bench/evidence"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestServicesSuite measures paths among 10 services, with traffic and with each workload of
// their tables, and finds evidence of each.
func TestServicesSuite(t *testing.T) {
	testkit.RequireTool(t, "iptables")
	testkit.RequireTool(t, "nft")
	o := testOptions(t, "iptables/10 tcp_crr", "ebpf-tc/10 tcp_crr", "ebpf-tc/1000 service_memory")
	for _, id := range []string{"iptables/10", "nftables/10", "ebpf-tc/10", "ebpf-socket/10"} {
		for _, workload := range suites.ServiceWorkloads() {
			if workload == result.WorkloadServiceMemory || workload == result.WorkloadServiceProgram && id == "ebpf-socket/10" {
				continue
			}
			o.Only = append(o.Only, id+" "+workload)
		}
	}
	o.Suites, o.Rounds = lookup(t, "services"), 1
	file := runClean(t, o)
	testkit.Check(t, len(file.Rows) == len(o.Only), "%d rows, want %d", len(file.Rows), len(o.Only))
	for _, row := range file.Rows {
		switch {
		case row.Status != result.StatusOK || len(row.Samples) != o.Rounds:
			t.Errorf("%s: %s %s, %d samples", rowName(row), row.Status, row.Reason, len(row.Samples))
		case slices.Min(row.Samples) <= 0:
			t.Errorf("%s: samples %v", rowName(row), row.Samples)
		case row.Workload == result.WorkloadServiceMemory && (row.Median < 480 || row.Median > 1024):
			t.Errorf("%s: %.0f bytes, want those of five rows", rowName(row), row.Median)
		case row.ID == "ebpf-tc/10" && row.Evidence.ProgramRuns["new_connection"] == 0,
			row.ID == "ebpf-socket/10" && row.Evidence.ProgramRuns["sock_connect"] == 0:
			t.Errorf("%s: no program has translated an address: %v", rowName(row), row.Evidence.ProgramRuns)
		case row.Via == result.ViaIPTables && len(row.Evidence.Hooks) == 0:
			t.Errorf("%s: the packets passed no rules", rowName(row))
		}
	}
}

// TestVanishedPolicyFails measures paths whose policy was removed: their rows have failed.
func TestVanishedPolicyFails(t *testing.T) {
	testkit.RequireTool(t, "iptables")
	testkit.RequireTool(t, "nft")
	paths := lookup(t, "policy")[0].Paths
	for id, reason := range map[string]string{"iptables/1": "0 rules", "nftables/1": "mustang-policy",
		"ebpf/1": "tracked increased by 0"} {
		t.Run(id, func(t *testing.T) {
			r := newRun(t)
			var path suites.Path
			for _, p := range paths {
				if p.ID == id {
					path = p
				}
			}
			l := testkit.Must(r.testbed.lab(t.Context(), path.Lab))(t)
			testkit.Succeed(t, l.ClearPolicy(t.Context()))
			row := newRow(rowSpec{r.options.Suites[0], path, suites.Workload{Name: load.TCPCRR, Flows: 1}})
			testkit.Succeed(t, r.epoch(t.Context(), []*measuredRow{row}, budgetOf(2)))
			testkit.Check(t, row.row.Status == result.StatusFailed && strings.Contains(row.row.Reason, reason),
				"%s %s, want failed: %s", row.row.Status, row.row.Reason, reason)
		})
	}
}

// TestFirewallPrograms measures with iptables-legacy, with iptables over nftables, and with nft, each the only one that
// is found. The result names the variant. Rows of the others are skipped for a program, which has a package.
func TestFirewallPrograms(t *testing.T) {
	for _, c := range []struct{ program, name, version, skipped string }{
		{"xtables-legacy-multi", "iptables", " (legacy)", "nft is missing: apt install nftables"},
		{"xtables-nft-multi", "iptables", " (nf_tables)", "nft is missing: apt install nftables"},
		{"nft", "nft", "nftables v", "iptables is missing: apt install iptables"},
	} {
		t.Run(c.program, func(t *testing.T) {
			testkit.RequireTool(t, c.program)
			o := testOptions(t, "iptables/1 tcp_rr", "iptables/1 policy_change", "nftables/1 tcp_rr",
				"nftables/1 policy_change")
			o.Suites, o.Rounds = lookup(t, "policy"), 1
			path, dir := testkit.Must(exec.LookPath(c.program))(t), t.TempDir()
			for _, name := range []string{c.name, c.name + "-restore", c.name + "-save", "ip6tables"} {
				testkit.Succeed(t, os.Symlink(path, filepath.Join(dir, name)))
			}
			t.Setenv("PATH", dir)
			file := testkit.Must(Run(t.Context(), o))(t)
			if got := file.Run.Versions[c.name]; len(file.Rows) != len(o.Only) || !strings.Contains(got, c.version) {
				t.Errorf("%d rows, version %q", len(file.Rows), got)
			}
			for _, row := range file.Rows {
				want := [2]string{result.StatusSkipped, c.skipped}
				if strings.HasPrefix(row.ID, c.name) {
					want = [2]string{result.StatusOK}
				}
				testkit.Check(t, [2]string{row.Status, row.Reason} == want, "%s: %s %q", rowName(row), row.Status, row.Reason)
			}
		})
	}
}

// TestPortComesAgain changes a service whose client has two ports. conntrack takes their next connections to the
// previous backend, and to the new one once their entries are gone.
func TestPortComesAgain(t *testing.T) {
	testkit.RequireTool(t, "iptables")
	o := lab.Options{Topology: lab.TopologyPodLinks, Link: "veth", Datapath: lab.DatapathKernel, Via: lab.ViaIPTables,
		Services: 2}
	o.Name = fmt.Sprintf("ports-%d", os.Getpid())
	l, err := lab.Store{Dir: t.TempDir() + "/state"}.Up(t.Context(), o)
	testkit.Succeed(t, err)
	t.Cleanup(func() {
		err := l.Close()
		testkit.Check(t, err == nil, "%v", err)
	})
	pod := testkit.Must(l.Namespace(lab.PodB))(t)
	testkit.Succeed(t, rtnl.In(pod).SetSysctl("net/ipv4/ip_local_port_range", "40000 40001"))
	c, err := connect(l, 0, evidence.Path{Client: lab.PodB, Server: lab.PodA, Lab: o})
	testkit.Succeed(t, err)
	defer c.close()
	services := l.AllServices(lab.OtherBackends)
	i := len(services) - 1
	testkit.Require(t, isOther(services[i]), "%v is not among the other services", services[i])
	reach := func(n int, of service.Service, want bool) {
		t.Helper()
		err := c.on(func() error {
			shows := false
			for range n {
				_, shown, err := c.reach(of)
				if err != nil {
					return err
				}
				shows = shows || shown
			}
			testkit.Check(t, shows == want, "a new backend is reached: %t, want %t", shows, want)
			return nil
		})
		testkit.Check(t, err == nil, "%v", err)
	}
	old := services[i]
	reach(8, old, true) // both ports
	other := old
	other.Backends = service.Backends(newBackend())
	services[i] = other
	testkit.Succeed(t, l.ChangeService(t.Context(), services, i))
	reach(8, old, false)
	reach(8, other, false)
	testkit.Succeed(t, c.forget())
	reach(1, other, true)
}
