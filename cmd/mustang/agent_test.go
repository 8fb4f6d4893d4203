// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/cni/install"
	"mustang/internal/datapath/kept"
	"mustang/internal/datapath/objects"
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
		"mustang: an agent already runs on this node, process %d (%s/agent.sock); its state: mustang agent status\n",
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
	n.tells(run, "an unknown service", answer{exitFailed, "", "not found: service shop/other"}, "service",
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

// register makes the node's object with a range, and waits until the container runtime has it.
func (n *agentNode) register(cidr, created int) {
	n.t.Helper()
	n.api.Put(n.t, nodeList,
		fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node%d", "uid": "%d", `+
			`"creationTimestamp": "2026-01-01T00:00:%02[2]dZ"},
"spec": {"podCIDRs": ["10.1.%[3]d.0/24", "fd00:1:%[3]d::/64"]},
"status": {"addresses": [{"type": "InternalIP", "address": %[4]q}, {"type": "InternalIP", "address": %[5]q}]}}`,
			n.number, created, cidr, n.addresses[0].Addr(), n.addresses[1].Addr()))
	testkit.Eventually(n.t, time.Minute, func() error {
		conflist, err := os.ReadFile(filepath.Join(n.dir, "conf", install.DefaultConfName))
		if err == nil && !bytes.Contains(conflist, fmt.Appendf(nil, "10.1.%d.0/24", cidr)) {
			err = errors.New("the configuration has another range")
		}
		return err
	})
}

// TestRangeOfAnotherNode recreates the objects of two nodes without pods, and gives the second node the first one's
// range. The first node routes there, before it has a pod again and afterwards.
func TestRangeOfAnotherNode(t *testing.T) {
	c := newCluster(t)
	first, second := c.nodes[0], c.nodes[1]
	for _, n := range c.nodes {
		n.start("auto")
		config := n.attach()
		n.call("DEL", config)
		n.pods = nil
	}
	c.api.Delete(nodeList, "", "node1")
	c.api.Delete(nodeList, "", "node2")
	first.register(3, 1)
	second.register(1, 2)
	testkit.Eventually(t, time.Minute, func() error {
		if routes := c.ip("-n " + first.ns.Name() + " route"); !strings.Contains(routes, "10.1.1.0/24 via 192.0.2.2 ") {
			return fmt.Errorf("no route to the range of the second node: %s", routes)
		}
		return nil
	})
	for _, n := range c.nodes {
		n.attach()
	}
	c.joined("with other ranges")
}
