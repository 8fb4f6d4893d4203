// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/cmd/mustang/internal/node"
	"mustang/internal/agent/status"
	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// setHealthPort gives the only service a health-check port, as the row of a load balancer's address has it.
func setHealthPort(t *testing.T, root string, port uint16) {
	t.Helper()
	o := testkit.Must(objects.Open(root))(t)
	defer o.Close()
	for row, err := range o.Services.All() {
		row.Value.HealthCheckPort = port
		row.Value.Flags |= objects.ServiceExternal | objects.ServiceExternalLocal
		testkit.Succeed(t, errors.Join(err, o.Services.Put(row.Key, row.Value)))
	}
	state, err := o.NodeState.IDs()
	state.LastRevision++
	testkit.Succeed(t, errors.Join(err, o.NodeState.PutIDs(state)))
}

// TestSvcHealth follows a service from before the datapath exists until it is unloaded.
func TestSvcHealth(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	root := testkit.BPFFS(t) + "/root"
	taken := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	addr := taken.Addr().String()
	port := uint16(taken.Addr().(*net.TCPAddr).Port)
	mustang := func(line string) {
		t.Helper()
		code, _, stderr := command(t, map[string]string{cli.EnvBPFRoot: root}, strings.Fields(line)...)
		testkit.Require(t, code == exitDone, "%s: exit code %d: %s", line, code, stderr)
	}
	ctx, end := context.WithCancel(context.Background())
	defer end()
	var stderr output
	done := make(chan int, 1)
	go func() {
		env := cli.Environment{
			Stdin: strings.NewReader(""), Stdout: &stderr, Stderr: &stderr,
			Getenv: func(key string) string { return map[string]string{cli.EnvBPFRoot: root}[key] },
		}
		done <- run(ctx, env, []string{"svc", "health", "--address=127.0.0.1"})
	}()
	answers := func(status int, body string) {
		t.Helper()
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		testkit.Eventually(t, 20*time.Second, func() error {
			resp, err := client.Get("http://" + addr)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			var text bytes.Buffer
			if _, err := text.ReadFrom(resp.Body); err != nil || resp.StatusCode != status ||
				!strings.Contains(text.String(), body) {
				return fmt.Errorf("status %d, %s, %v; want %d and %s", resp.StatusCode, text.String(), err, status, body)
			}
			return nil
		})
	}
	mustang("svc add --service=192.0.2.1:80 --protocol=tcp --backend=10.1.0.1:80,local")
	setHealthPort(t, root, port)
	want := fmt.Sprintf(
		"mustang: health-check port %d of service 192.0.2.1:80/tcp: listen tcp %s: bind: address already in use\n",
		port, addr)
	testkit.Eventually(t, 20*time.Second, func() error {
		if stderr.String() != want {
			return fmt.Errorf("it says %q, want %q", stderr.String(), want)
		}
		return nil
	})
	testkit.Succeed(t, taken.Close())
	answers(http.StatusOK, `"localEndpoints": 1`)
	mustang("svc add --service=192.0.2.1:80 --protocol=tcp --backend=10.1.0.1:80")
	setHealthPort(t, root, port)
	answers(http.StatusServiceUnavailable, `"localEndpoints": 0`)
	mustang("datapath unload")
	testkit.Eventually(t, 20*time.Second, func() error {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("without a datapath: %v", err)
		}
		return nil
	})
	end()
	if code := <-done; code != exitDone || stderr.String() != want {
		t.Errorf("it ends with exit code %d, and says %q", code, stderr.String())
	}
}

// TestApplyIsInterrupted while it waits for standard input: it has changed nothing.
func TestApplyIsInterrupted(t *testing.T) {
	testkit.RequireRoot(t)
	env := map[string]string{cli.EnvBPFRoot: testkit.BPFFS(t) + "/mustang", envStateDir: t.TempDir(),
		node.EnvSaved: filepath.Join(t.TempDir(), "saved.json")}
	in, keepOpen := io.Pipe()
	defer keepOpen.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	e := cli.Environment{Stdin: in, Stdout: &out, Stderr: &errs, Getenv: func(key string) string { return env[key] }}
	done := make(chan int, 1)
	go func() { done <- run(ctx, e, []string{"svc", "apply", "-f", "-"}) }()
	if _, err := io.WriteString(keepOpen, "schema: 1\n"); err != nil { // it reads
		t.Fatal(err)
	}
	cancel()
	select {
	case code := <-done:
		testkit.Check(t, code == exitFailed && errs.String() == "mustang: standard input: interrupted\n" && out.Len() <= 0,
			"exit code %d, %q, %q", code, out.String(), errs.String())
	case <-time.After(time.Minute):
		t.Fatal("it waits for standard input still")
	}
	code, _, stderr := command(t, env, "svc", "restore")
	testkit.Check(t, code == exitFailed && strings.Contains(stderr, "saved.json"),
		"restore: exit code %d, %q", code, stderr)
}

// TestNamesOfServices lists the services of an agent by the agent's names, and without an agent by address. A frontend
// that two Services claim has the name of the Service that holds it.
func TestNamesOfServices(t *testing.T) {
	env := map[string]string{cli.EnvBPFRoot: testkit.BPFFS(t) + "/mustang"}
	d := testkit.Must(datapath.Open(t.Context(), datapath.Options{Root: env[cli.EnvBPFRoot]}))(t)
	defer d.Close()
	for at, owner := range map[string]service.Owner{"10.96.0.1:80": service.Agent, "10.96.0.2:80": service.CLI} {
		s := service.Service{Frontend: netip.MustParseAddrPort(at), Protocol: service.TCP}
		testkit.Must(d.Services().Apply(t.Context(), owner, []service.Service{s}))(t)
	}
	dir := t.TempDir()
	ls := func(format string) (stdout, stderr string) {
		code, stdout, stderr := command(t, env, "svc", "ls", "-o", format, "--run-dir", dir)
		testkit.Require(t, code == exitDone, "exit code %d: %s", code, stderr)
		return strings.Join(strings.Fields(stdout), " "), stderr
	}
	stdout, stderr := ls("table")
	testkit.Check(t, strings.HasPrefix(stdout, "ID OWNER PROTOCOL ADDRESS") &&
		strings.Contains(stderr, "no names of the agent's services: no agent answers"),
		"without an agent it is %q, %q", stdout, stderr)
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
		_, err := status.Ask(t.Context(), dir, "/process", 64)
		return err
	})
	stdout, stderr = ls("table")
	testkit.Check(t, strings.HasPrefix(stdout, "ID OWNER NAME PROTOCOL") &&
		strings.Contains(stdout, " agent shop/web tcp 10.96.0.1 80") && strings.Contains(stdout, " cli - tcp 10.96.0.2 80") &&
		stderr == "",
		"it is %q, %q", stdout, stderr)
	if stdout, _ = ls("json"); strings.Count(stdout, `"name": "shop/web"`) != 1 || strings.Count(stdout, `"name"`) != 1 {
		t.Errorf("it is %s", stdout)
	}
}
