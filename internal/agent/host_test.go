// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mustang/internal/datapath"
	"mustang/internal/testkit"
)

// TestDeviceAfterPods makes a device of the node on the parent of a pod that runs already. It is guarded once the agent has attached all.
func TestDeviceAfterPods(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	testkit.RequireTool(t, "ip")
	d, err := datapath.Open(t.Context(), datapath.Options{Root: filepath.Join(testkit.BPFFS(t), "mustang")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	node, pod := testkit.Namespace(t, "node"), testkit.Namespace(t, "pod")
	run := func(lines string) {
		t.Helper()
		lines = strings.NewReplacer("NODE", filepath.Base(node.Path()), "POD", filepath.Base(pod.Path())).Replace(lines)
		for line := range strings.Lines(lines) {
			if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
				t.Fatalf("ip %s: %v: %s", line, err, out)
			}
		}
	}
	run(`-n NODE link add up0 type veth peer name up1
		-n NODE link set up0 up
		-n NODE link add link up0 name eth0 netns POD type macvlan mode bridge
		-n POD addr add 10.1.0.2/24 dev eth0
		-n POD link set eth0 up`)
	if _, _, err := d.Endpoints().Put(t.Context(), datapath.EndpointSpec{Namespace: pod, IfName: "eth0", Host: node}); err != nil {
		t.Fatal(err)
	}
	run(`-n NODE link add late link up0 type macvlan mode bridge
		-n NODE link set late up`)
	if err := (Host{Datapath: d, Namespace: node, Uplinks: []string{}}).Attach(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	err = Host{Datapath: d, Namespace: node, Uplinks: []string{"nosuch"}}.Attach(t.Context(), nil)
	if err == nil || !strings.HasPrefix(err.Error(), "--uplink nosuch: ") {
		t.Errorf("an uplink that is not there: %v", err)
	}
	if change, err := d.GuardParents(t.Context()); err != nil || change != datapath.Unchanged {
		t.Errorf("the device was not guarded: %v, %v", change, err)
	}
}
