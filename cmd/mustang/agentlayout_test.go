// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath/objects"
	"mustang/internal/kube/kubetest"
	"mustang/internal/testkit"
)

// TestAgentOtherLayout starts an agent on a node with maps of another layout. It and other commands end with one line,
// and an open connection through a service goes on. mustang reset makes room for the maps of this build.
func TestAgentOtherLayout(t *testing.T) {
	t.Parallel()
	n := newKillNetwork(t)
	n.run("ep add --netns=PODA --host-netns=HOST")
	n.run("ep add --netns=PODB --host-netns=HOST")
	n.run("svc add --service=" + killFrontend + " --backend=BACKEND")
	conn := testkit.Must(testkit.Dial(n.pods[1], "tcp", killFrontend))(t)
	defer conn.Close()
	own, other := fmt.Sprintf("v%d", objects.LayoutVersion), fmt.Sprintf("v%d", objects.LayoutVersion-1)
	testkit.Succeed(t, os.Rename(filepath.Join(n.root, own), filepath.Join(n.root, other)))
	refused := fmt.Sprintf(
		"mustang: %q holds maps of layout %s, and this build has layout %s: mustang reset deletes them, "+
			"and ends all connections through services\n", n.root, other, own)
	agent := n.agentCommand(kubetest.Start(t).Kubeconfig(t), t.TempDir())
	agent.Stderr = nil
	late := time.AfterFunc(time.Minute, func() { _ = agent.Process.Kill() })
	defer late.Stop()
	out, err := agent.CombinedOutput()
	testkit.Check(t, err != nil && string(out) == refused, "the agent: %v, %q, want %q", err, out, refused)
	env := map[string]string{cli.EnvBPFRoot: n.root}
	for _, args := range [][]string{{"svc", "ls"}, {"datapath", "upgrade"}, {"svc", "rm", "--service=" + killFrontend}} {
		if code, _, stderr := command(t, env, args...); code != exitFailed || stderr != refused {
			t.Errorf("%s: exit code %d, %q, want %q", args, code, stderr, refused)
		}
	}
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := conn.Write([]byte("open")); err != nil {
		t.Error(err)
	} else if _, err := conn.Read(make([]byte, 4)); err != nil {
		t.Error(err)
	}
	n.run("reset")
	n.run("svc add --service=" + killFrontend + " --backend=BACKEND")
}
