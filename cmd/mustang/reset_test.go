// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mustang/internal/datapath"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestResetBesideAgent keeps what the node's agent has written, unless by force.
func TestResetBesideAgent(t *testing.T) {
	testkit.RequireRoot(t)
	root := filepath.Join(testkit.BPFFS(t), "mustang")
	d := testkit.Must(datapath.Open(t.Context(), datapath.Options{Root: root}))(t)
	defer d.Close()
	web := service.Service{Frontend: netip.MustParseAddrPort("192.0.2.1:80"), Protocol: service.TCP}
	if _, err := d.Services().Apply(t.Context(), service.Agent, []service.Service{web}); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		cmd := exec.Command("mustang", args...)
		cmd.Env = append(os.Environ(), "MUSTANG_BPF_ROOT="+root)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, args := range [][]string{{"reset"}, {"datapath", "unload"}} {
		if out, err := run(args...); err == nil || !strings.Contains(out, "1 service is of this node's agent") {
			t.Errorf("%v: %v, %s", args, err, out)
		}
		if all, err := d.Services().List(t.Context()); err != nil || len(all) != 1 {
			t.Errorf("%v: %v, %v", args, all, err)
		}
	}
	if out, err := run("reset", "--force"); err != nil || out != "deleted: 1 service, 0 endpoints, 0 network policies\n" {
		t.Errorf("%v, %s", err, out)
	}
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
