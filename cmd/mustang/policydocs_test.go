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
	bpffs := testkit.BPFFS(t)
	const heading = "Two ipvlan pods of one host"
	var script strings.Builder
	for _, line := range shellBlocks(t, policyPage, heading) {
		command, says, _ := strings.Cut(line, "  # ")
		if says == "fails" {
			script.WriteString("! ")
		}
		script.WriteString("exec " + strings.Replace(command, " ping ", " busybox ping ", 1) + "\n")
	}
	if strings.Count(script.String(), "! exec ") != 5 {
		t.Fatalf("the commands are not those expected:\n%s", script.String())
	}
	text, err := os.ReadFile(policyPage)
	if err != nil {
		t.Fatal(err)
	}
	_, file, _ := strings.Cut(string(text), "\n## "+heading+"\n")
	_, file, _ = strings.Cut(file, "```yaml\n")
	file, _, _ = strings.Cut(file, "```\n")
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/policy.txtar", []byte(script.String()+"-- nobody.yaml --\n"+file), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, name := range []string{"shop-host", "shop-a", "shop-b"} {
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
