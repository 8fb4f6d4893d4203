// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"mustang/cmd/mustang/internal/cli"
	"mustang/cmd/mustang/internal/node"
	"mustang/internal/agent/status"
	"mustang/internal/datapath"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestNamesOfServices lists the services of an agent by the agent's names, and without an agent by address. A frontend
// that two Services claim has the name of the Service that holds it.
func TestNamesOfServices(t *testing.T) {
	env := map[string]string{cli.EnvBPFRoot: testkit.BPFFS(t) + "/mustang"}
	d := testkit.Must(datapath.Open(t.Context(), datapath.Options{Root: env[cli.EnvBPFRoot]}))(t)
	defer d.Close()
	for at, owner := range map[string]service.Owner{"10.96.0.1:80": service.Agent, "10.96.0.2:80": service.CLI} {
		s := service.Service{Frontend: netip.MustParseAddrPort(at), Protocol: service.TCP}
		_, err := d.Services().Apply(t.Context(), owner, []service.Service{s})
		testkit.Require(t, err == nil, "%v", err)
	}
	dir := t.TempDir()
	ls := func(format string) (stdout, stderr string) {
		code, stdout, stderr := command(t, env, "svc", "ls", "-o", format, "--run-dir", dir)
		testkit.Require(t, code == exitDone, "exit code %d: %s", code, stderr)
		return strings.Join(strings.Fields(stdout), " "), stderr
	}
	stdout, stderr := ls("table")
	if !strings.HasPrefix(stdout, "ID OWNER PROTOCOL ADDRESS") ||
		!strings.Contains(stderr, "no names of the agent's services: no agent answers") {
		t.Errorf("without an agent it is %q, %q", stdout, stderr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_ = status.ServeSocket(ctx, dir, node.Handler(func(_ context.Context, q status.Query) (r status.Report, err error) {
			r = status.Report{Schema: status.Schema}
			const at, other = "10.96.0.1:80/tcp", "10.96.0.2:80/tcp"
			r.Fill(q, nil, []status.Object{
				{Kind: status.Service, Namespace: "shop", Name: "web", Entries: []status.Entry{{What: at, InTables: true}}},
				{Kind: status.Service, Namespace: "shop", Name: "late", Entries: []status.Entry{{What: at, Why: "shop/web has it"},
					{What: other}}},
			})
			return r, nil
		}, http.NotFoundHandler()))
	}()
	testkit.Eventually(t, 30*time.Second, func() error {
		_, err := status.Ask(t.Context(), dir, "/process",
			64)
		return err
	})
	stdout, stderr = ls("table")
	if !strings.HasPrefix(stdout, "ID OWNER NAME PROTOCOL") ||
		!strings.Contains(stdout, " agent shop/web tcp 10.96.0.1 80") ||
		!strings.Contains(stdout, " cli - tcp 10.96.0.2 80") || stderr != "" {
		t.Errorf("it is %q, %q", stdout, stderr)
	}
	if stdout, _ = ls("json"); strings.Count(stdout, `"name": "shop/web"`) != 1 || strings.Count(stdout, `"name"`) != 1 {
		t.Errorf("it is %s", stdout)
	}
}
