// SPDX-License-Identifier: Apache-2.0

package linkinfo_test

import (
	"os/exec"
	"strings"
	"testing"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestLinkOpenVSwitch makes a datapath in the kernel with an internal port here
// and one in another namespace, and looks from both.
func TestLinkOpenVSwitch(t *testing.T) {
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	testkit.RequireMode(t, rtnl.In(a).TryGenericFamily("ovs_datapath"))
	testkit.RequireTool(t, "ovs-dpctl")
	for _, args := range []string{"add-dp dp0", "add-if dp0 near0,type=internal", "add-if dp0 far0,type=internal"} {
		var errs strings.Builder
		cmd := exec.Command("ovs-dpctl", strings.Fields(args)...)
		cmd.Stderr = &errs
		if err := a.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("ovs-dpctl %s: %v: %s", args, err, errs.String())
		}
	}
	ip(t, a, b, "-n A link set far0 netns B")
	in, out := survey(t, a), survey(t, b)
	if near := in["near0"]; near.Kind != "openvswitch" || near.Parent == nil || near.Parent.Name != "dp0" || near.Parent.Namespace != nil {
		t.Errorf("internal port is %+v, on %+v", near, near.Parent)
	}
	if dp := in["dp0"]; dp.Parent != nil || len(dp.Children) != 1 || dp.Children[0].Name != "far0" || dp.Children[0].Namespace.Name != b.Name() {
		t.Errorf("datapath is %+v", dp)
	}
	far := out["far0"]
	if far.Parent == nil || far.Parent.Name != "dp0" || far.Parent.Namespace == nil || far.Parent.Namespace.Name != a.Name() {
		t.Errorf("internal port is %+v, on %+v", far, far.Parent)
	}
}
