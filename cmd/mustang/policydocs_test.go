// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

const policyPage = "../../docs/policy.md"

// TestPolicyPage runs the first example of the page on policies.
func TestPolicyPage(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "busybox")
	runPolicyPage(t, "Three pods on a bridge and a policy", 1, "db.yaml")
}

// TestPolicyPageIpvlan runs the commands of the page on policies with which root of a pod tries to get past one.
func TestPolicyPageIpvlan(t *testing.T) {
	testkit.RequireRoot(t)
	mode, err := podlink.Lookup("ipvlan-l2")
	if err != nil {
		t.Fatal(err)
	}
	testkit.RequireMode(t, mode.Probe())
	testkit.RequireTool(t, "busybox")
	testkit.RequireTool(t, "tc")
	runPolicyPage(t, "Two ipvlan pods of one host", 6, "nobody.yaml")
}

// runPolicyPage runs the commands of a section, of which so many fail, with the section's policies in a file.
func runPolicyPage(t *testing.T, heading string, failing int, file string) {
	t.Helper()
	bpffs := testkit.BPFFS(t)
	var script strings.Builder
	namespaces := []string{}
	for _, line := range shellBlocks(t, policyPage, heading) {
		command, says, _ := strings.Cut(line, "  # ")
		if says == "fails" {
			script.WriteString("! ")
		}
		if name, ok := strings.CutPrefix(command, "ip netns add "); ok {
			namespaces = append(namespaces, name)
		}
		script.WriteString("exec " + strings.Replace(command, " ping ", " busybox ping ", 1) + "\n")
	}
	if strings.Count(script.String(), "! exec ") != failing {
		t.Fatalf("the commands are not those expected:\n%s", script.String())
	}
	text, err := os.ReadFile(policyPage)
	if err != nil {
		t.Fatal(err)
	}
	_, policies, _ := strings.Cut(string(text), "\n## "+heading+"\n")
	_, policies, _ = strings.Cut(policies, "```yaml\n")
	policies, _, _ = strings.Cut(policies, "```\n")
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/policy.txtar", []byte(script.String()+"-- "+file+" --\n"+policies), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, name := range namespaces {
			if err := netns.Delete(name); err != nil {
				t.Error(err)
			}
		}
	})
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv(cli.EnvBPFRoot, bpffs+"/mustang")
			return nil
		},
	})
}
