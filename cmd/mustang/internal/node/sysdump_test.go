// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/kube/kubetest"
	"mustang/internal/testkit"
)

const secret = "Hunter2hunter2" // must not be in an archive, as far as the form of a text allows

func text(body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, body)
	})
}

// exec answers as a kubelet does that runs a command: by WebSocket, in channels (v5.channel.k8s.io).
func exec(stdout, stderr []byte, code int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := strings.Join(r.URL.Query()["command"], " "); !strings.HasPrefix(got, "mustang sysdump -f - ") ||
			r.URL.Query().Get("container") != "agent" {
			http.Error(w, "asked for "+r.URL.RawQuery, http.StatusBadRequest)
			return
		}
		conn, err := (&websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}).Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer conn.Close()
		end := `{"status": "Success"}`
		if code != 0 {
			end = fmt.Sprintf(`{"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [{"reason": `+
				`"ExitCode", "message": "%d"}]}}`, code)
		}
		for channel, data := range [][]byte{nil, stdout, stderr, []byte(end)} {
			if len(data) > 0 {
				_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{byte(channel)}, data...))
			}
		}
		_ = conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
		_, _, _ = conn.ReadMessage()
	})
}

// TestCluster collects from nodes, one of them with an agent that fails, and from the API server, with secrets
// everywhere.
func TestCluster(t *testing.T) {
	s := kubetest.Start(t)
	var node bytes.Buffer
	a := newArchive(&node, 1<<20, time.Minute)
	a.add("commands/status.txt", []byte("all is well"))
	a.lack("metrics.txt", errors.New("no agent"))
	testkit.Succeed(t, a.close())
	const pods = "/api/v1/namespaces/kube-system/pods"
	s.Handle(pods, text(`{"items": [{"metadata": {"name": "mustang-1"}, "spec": {"nodeName": "good"}, "status": `+
		`{"containerStatuses": [{"restartCount": 1}]}}, {"metadata": {"name": "mustang-2"}, "spec": {"nodeName": `+
		`"../bad"}}]}`))
	s.Handle(pods+"/mustang-1/exec", exec(node.Bytes(), nil, 0))
	s.Handle(pods+"/mustang-2/exec", exec(nil, []byte("mustang: unknown command password="+secret), 2))
	s.Handle(pods+"/mustang-1/log", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("previous") {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, "level=INFO msg=synced token="+secret+"\n")
	}))
	s.Handle("/version", text(`{"gitVersion": "v1.34.4"}`))
	s.Handle("/apis/apps/v1/namespaces/kube-system/daemonsets",
		text(`{"items": [{"metadata": {"name": "mustang", "annotations":
{"kubectl.kubernetes.io/last-applied-configuration": "`+secret+`"}}, "spec": {"template": {"spec": {"containers": [{"args": ["agent", "--token", "`+secret+`"],
"env": [{"name": "DB_PASSWORD", "value": "`+secret+`"}, {"name": "NODE_NAME", "value": "kept"}]}]}}}}]}`))
	s.Handle("/api/v1/namespaces/kube-system/events", text(`{"items": [{"message": "pull https://user:`+secret+
		`@registry.example/x failed"}]}`))
	s.Put(t, "/api/v1/nodes",
		`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "good", "annotations": {"join-token": "`+secret+`"}}}`)
	s.Put(t, "/api/v1/secrets",
		`{"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "kube-system", "name": "x"}, "data": {"x": "`+
			secret+`"}}`)

	out := filepath.Join(t.TempDir(), "dump.tar.gz")
	var stdout bytes.Buffer
	cmd := Sysdump(&cli.Config{Environment: cli.Environment{Stdout: &stdout, Getenv: os.Getenv}}, nil)
	cmd.SetArgs([]string{"--kubeconfig", s.Kubeconfig(t), "-f", out})
	testkit.Succeed(t, cmd.ExecuteContext(t.Context()))
	all := testkit.ReadArchive(t, out)
	for name, want := range map[string]string{
		"cluster/version.json": "v1.34.4", "cluster/nodes.json": `"good"`, "cluster/daemonsets.json": "kept",
		"cluster/events.json": "registry.example",
		"cluster/pods.json":   "mustang-1", "nodes/good/agent.log": "msg=synced",
		"nodes/good/commands/status.txt": "all is well", "nodes/good/missing.txt": "no agent",
	} {
		testkit.Check(t, strings.Contains(all[name], want), "%s has %q, want %q", name, all[name], want)
	}
	for _, want := range []string{"nodes/good/agent-before.log", "nodes/bad:", "exit code 2", "unknown command"} {
		testkit.Check(t, strings.Contains(all["missing.txt"], want), "missing.txt lacks %q: %s", want, all["missing.txt"])
	}
	if missing := all["missing.txt"]; strings.Contains(missing, "nodes/bad/agent-before.log") {
		t.Errorf("a container that never restarted has no log of before: %s", missing)
	}
	for name, text := range all {
		testkit.Check(t, !strings.Contains(text, secret), "%s has a secret: %s", name, text)
	}
	if said := stdout.String(); !strings.Contains(said, "KiB, of 1 of 2 nodes\n") ||
		!strings.HasSuffix(said, " files could not be collected: missing.txt in the archive has the reasons\n") {
		t.Errorf("it says %q", stdout.String())
	}
}

// TestClusterEnds writes the data so far when a node does not answer in time. It leaves nothing when it is interrupted,
// or without a cluster.
func TestClusterEnds(t *testing.T) {
	s := kubetest.Start(t)
	dir := t.TempDir()
	run := func(ctx context.Context, args ...string) error {
		cmd := Sysdump(&cli.Config{Environment: cli.Environment{Stdout: io.Discard, Getenv: os.Getenv}}, nil)
		cmd.SetArgs(append(args, "-f", filepath.Join(dir, "dump.tar.gz")))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		return cmd.ExecuteContext(ctx)
	}
	s.Handle("/api/v1/namespaces/kube-system/pods",
		text(`{"items": [{"metadata": {"name": "mustang-1"}, "spec": {"nodeName": "slow"}}]}`))
	s.Handle("/api/v1/namespaces/kube-system/pods/mustang-1/exec",
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-t.Context().Done():
			}
		}))
	testkit.Succeed(t, run(t.Context(), "--kubeconfig", s.Kubeconfig(t), "--timeout", "2s"))
	missing := testkit.ReadArchive(t, filepath.Join(dir, "dump.tar.gz"))["missing.txt"]
	testkit.Check(t, strings.Contains(missing, "nodes/slow: "), "a node that never answers: %s", missing)
	testkit.Succeed(t, os.Remove(filepath.Join(dir, "dump.tar.gz")))
	if err := run(t.Context(), "--kubeconfig", s.Kubeconfig(t), "--namespace", "default"); err == nil ||
		!strings.Contains(err.Error(), "namespace default lacks pods with labels app.kubernetes.io/name=mustang") {
		t.Errorf("a namespace without agents: %v", err)
	}
	s.Handle("/api/v1/namespaces/other/pods", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w,
			`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "pods is forbidden: User \"x\" cannot `+
				`list", "reason": "Forbidden", "code": 403}`)
	}))
	err := run(t.Context(), "--kubeconfig", s.Kubeconfig(t), "--namespace", "other")
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "list pods of namespace other: pods is forbidden: User"),
		"without rights: %v", err)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(500*time.Millisecond, cancel)
	err = run(ctx, "--kubeconfig", s.Kubeconfig(t))
	testkit.Check(t, errors.Is(err, context.Canceled), "interrupted: %v", err)
	config := s.Kubeconfig(t)
	s.Stop()
	err = run(t.Context(), "--kubeconfig", config, "--timeout", "5s")
	testkit.Check(t, err != nil, "no error without a cluster")
	left, err := os.ReadDir(dir)
	testkit.Check(t, err == nil && len(left) == 0, "left: %v, %v", left, err)
}
