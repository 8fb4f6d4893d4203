// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath/objects"
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
