// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath/kept"
	"mustang/internal/kube/kubetest"
	"mustang/internal/testkit"
)

const agentFrontend = "10.96.0.20:80"

// agentService is a Service of agentFrontend, and agentSlice its backend.
const (
	agentService = `{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
"spec": {"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}}`
	agentSlice = `{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
"metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
"ports": [{"port": %d}], "endpoints": [{"addresses": [%q]}]}`
)

// agentPolicy denies all traffic to pods of the application web.
const agentPolicy = `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"namespace": ` +
	`"shop", "name": "deny"},
"spec": {"podSelector": {"matchLabels": {"app": "web"}}}}`

// agentCommand is an agent as a process of its own, which has not begun.
func (n *killNetwork) agentCommand(kubeconfig, runDir string) *exec.Cmd {
	args := "agent --node=here --netns=HOST --cgroup=CGROUP --uplink=wire --cni-conf-dir= --cni-socket=none --run-dir=" +
		runDir + " --kubeconfig=" + kubeconfig
	cmd := exec.Command("mustang", n.args(args)...)
	cmd.Env = append(os.Environ(), cli.EnvBPFRoot+"="+n.root)
	return cmd
}

func (n *killNetwork) agent(kubeconfig, runDir string) *exec.Cmd {
	n.t.Helper()
	cmd := n.agentCommand(kubeconfig, runDir)
	cmd.Stderr = os.Stderr
	testkit.Succeed(n.t, cmd.Start())
	n.t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	return cmd
}

// serves waits until pod b reaches the cluster IP, or does not.
func (n *killNetwork) serves(what string, want bool) {
	n.t.Helper()
	testkit.Eventually(n.t, time.Minute, func() error {
		err := n.pods[1].Do(func() error {
			conn, err := net.DialTimeout("tcp", agentFrontend, time.Second)
			if err == nil {
				_ = conn.Close()
			}
			return err
		})
		if (err == nil) == want {
			return nil
		}
		return fmt.Errorf("%s: %v", what, err)
	})
}

// answer is the expected output of agent status: an exit code, and some text on standard output and error.
type answer struct {
	code     int
	out, err string
}

// tells waits until the agent's status prints an answer.
func (n *killNetwork) tells(runDir, what string, want answer, args ...string) {
	n.t.Helper()
	testkit.Eventually(n.t, time.Minute, func() error {
		have, stdout, stderr := command(n.t, nil, append([]string{"agent", "status", "--run-dir", runDir}, args...)...)
		if have != want.code || !strings.Contains(stdout, want.out) || !strings.Contains(stderr, want.err) ||
			strings.Count(stderr, "\n") > 1 {
			return fmt.Errorf("%s: status has code %d, stdout %q, stderr %q", what, have, stdout, stderr)
		}
		return nil
	})
}

// refusesSecond starts a second agent, which has to end at once.
func (n *killNetwork) refusesSecond(kubeconfig, runDir string, first int) {
	n.t.Helper()
	var stderr strings.Builder
	second := n.agentCommand(kubeconfig, runDir)
	second.Stderr = &stderr
	testkit.Succeed(n.t, second.Start())
	late := time.AfterFunc(20*time.Second, func() { _ = second.Process.Kill() })
	defer late.Stop()
	_ = second.Wait()
	want := fmt.Sprintf(
		"mustang: an agent already runs on this node, process %d (%s/agent.sock); to ask it: mustang agent status\n",
		first, runDir)
	if code := second.ProcessState.ExitCode(); code != exitFailed || stderr.String() != want {
		n.t.Errorf("a second agent has code %d, stderr %q, want %q", code, &stderr, want)
	}
}

// TestAgentServes has pods call a cluster IP that an agent makes of Kubernetes' objects: it is killed, the API server
// is away, and what others have made stays.
func TestAgentServes(t *testing.T) {
	t.Parallel()
	n := newKillNetwork(t)
	n.root = kept.Root(t)
	backend := testkit.Echo(t, n.pods[0], "tcp", killPodA+":0")
	n.run("ep add --netns=PODA --host-netns=HOST --namespace=shop --label=app=web")
	n.run("ep add --netns=PODB --host-netns=HOST")
	n.run("svc add --service=" + killFrontend + " --backend=BACKEND")

	api := kubetest.Start(t)
	config := api.Kubeconfig(t)
	put := func() {
		api.Put(t, "/api/v1/services", agentService)
		api.Put(t, "/apis/discovery.k8s.io/v1/endpointslices", fmt.Sprintf(agentSlice, backend.Port(), backend.Addr()))
	}
	run := t.TempDir()
	n.tells(run, "no agent", answer{exitFailed, "", "no agent answers at " + run})
	agent := n.agent(config, run)
	put()
	n.serves("a new Service", true)
	// no Node object
	n.tells(run, "a summary", answer{exitFailed, "service               1        1       1          0        0      0\n",
		"1 object is wrong"})
	n.tells(run, "one service", answer{exitDone, "service shop/web: ok\n  10.96.0.20:80/tcp  1 backend  installed\n", ""},
		"service", "shop/web")
	n.tells(run, "an unknown service", answer{exitFailed, "", "the agent knows no service shop/other"}, "service",
		"shop/other")
	n.tells(run, "an unknown kind", answer{exitMisuse, "", `kind "frob"`}, "frob")
	api.Put(t, "/api/v1/services", strings.Replace(agentService, `"web"`, `"web2"`, 1))
	n.tells(run, "one of the same address", answer{exitFailed, "not served: shop/web already has 10.96.0.20:80",
		"1 object is wrong"}, "services")
	api.Delete("/api/v1/services", "shop", "web2")
	n.refusesSecond(config, run, agent.Process.Pid)
	api.Put(t, "/apis/networking.k8s.io/v1/networkpolicies", agentPolicy)
	n.serves("a policy denies it", false)
	api.Delete("/apis/networking.k8s.io/v1/networkpolicies", "shop", "deny")
	n.serves("no policy", true)
	testkit.Succeed(t, agent.Process.Kill())
	_ = agent.Wait()
	n.tells(run, "the agent is killed", answer{exitFailed, "", "connection refused"})
	n.serves("the agent is killed", true)
	api.Delete("/api/v1/services", "shop", "web")
	n.agent(config, run)
	n.serves("the Service went while no agent was there", false)
	put()
	n.serves("the Service again", true)
	api.Stop()
	n.serves("no API server", true)
	_, err := testkit.RoundTrip(t, n.pods[1], "tcp", killFrontend, []byte("x"))
	testkit.Check(t, err == nil, "a service of the command line: %v", err)
}
