// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"mustang/internal/testkit"
)

// TestOVSAway stops ovs-vswitchd: Create and Setup fail with one error each and leave nothing, and Delete needs no answer.
func TestOVSAway(t *testing.T) {
	testkit.RequireRoot(t)
	for _, mode := range ovsModes() {
		t.Run(mode.Name(), func(t *testing.T) {
			t.Parallel()
			testkit.RequireMode(t, mode.Probe())
			f := newFixture(t, mode, 1)
			ports := func() string { return vsctl(t, f.network, "list-ports", DefaultBridge) }
			signal := func(s syscall.Signal) {
				text, err := os.ReadFile(filepath.Join(filepath.Dir(f.network.OVSDB), "ovs-vswitchd.pid"))
				if err != nil {
					t.Fatal(err)
				}
				pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
				if err == nil {
					err = syscall.Kill(pid, s)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			signal(syscall.SIGSTOP)
			_, err := mode.Create(f.network, f.newPod(t, 1))
			if err == nil || strings.Count(err.Error(), "ovs-vswitchd has applied") != 1 {
				t.Errorf("Create says %v", err)
			}
			if left := ports(); left != "msta\n" {
				t.Errorf("after Create, the ports are %q", left)
			}
			if err := mode.Delete(f.network, f.pods[0]); err != nil {
				t.Error(err)
			}
			if left := ports(); left != "" {
				t.Errorf("after Delete, the ports are %q", left)
			}
			network := f.network
			network.Bridge = "mst1"
			err = mode.Setup(network)
			if err == nil || strings.Count(err.Error(), "ovs-vswitchd has applied") != 1 {
				t.Errorf("Setup says %v", err)
			}
			if bridges := vsctl(t, f.network, "list-br"); bridges != DefaultBridge+"\n" {
				t.Errorf("after Setup, the bridges are %q", bridges)
			}
			signal(syscall.SIGKILL)
			if err := mode.Delete(f.network, f.pods[0]); err != nil {
				t.Errorf("Delete again: %v", err)
			}
		})
	}
}
