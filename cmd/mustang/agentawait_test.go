// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/cni/install"
	"mustang/internal/cni/netconf"
	"mustang/internal/cni/server"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// startCNI starts the node's agent with its CNI socket, and returns the configuration that it writes.
func (n *agentNode) startCNI() []byte {
	n.t.Helper()
	n.must(os.RemoveAll(filepath.Join(n.dir, "conf", install.DefaultConfName)))
	n.launch("--uplink=none", "--cni-socket", n.dir+"/cni/cni.sock", "--link=veth", "--services=tc", "--cni-conf-dir",
		n.dir+"/conf")
	return n.written()
}

// kubePod is a pod that a kubelet attaches.
type kubePod struct {
	*netns.Namespace
	name, uid, id string
	addr          netip.Addr
}

func (n *agentNode) kubePod(name, uid string) *kubePod {
	return &kubePod{Namespace: testkit.Namespace(n.t, name), name: name, uid: uid, id: name + "-" + uid}
}

func (p *kubePod) object() string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": %q, "uid": %q, `+
		`"creationTimestamp": "2026-01-01T00:00:00Z",
"labels": {"app": %[1]q}}, "spec": {"nodeName": "node1"}, "status": {"phase": "Pending"}}`, p.name, p.uid)
}

// add starts ADD, and returns a function that waits for its end: the error has the output of the plugin.
func (n *agentNode) add(p *kubePod, config []byte) (end func() error) {
	n.t.Helper()
	cmd := exec.Command(staticProgram(n.t, netconf.PluginType))
	cmd.Env = append(n.env(), server.SocketVariable+"="+n.dir+"/cni/cni.sock", "CNI_COMMAND=ADD", "CNI_CONTAINERID="+
		p.id, "CNI_IFNAME=eth0",
		"CNI_PATH=/nowhere", "CNI_NETNS="+p.Path(), "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME="+p.name+
			";K8S_POD_UID="+p.uid)
	var stdout bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(config), &stdout, os.Stderr
	n.must(n.ns.Start(cmd))
	return func() error {
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("%w: %s", err, &stdout)
		}
		var result types100.Result
		if err := json.Unmarshal(stdout.Bytes(), &result); err != nil {
			return err
		}
		for _, ip := range result.IPs {
			if a, _ := netip.AddrFromSlice(ip.Address.IP); a.Unmap().Is4() {
				p.addr = a.Unmap()
			}
		}
		return nil
	}
}

func (p *kubePod) connects(to netip.AddrPort) bool {
	return p.Do(func() error {
		conn, err := net.DialTimeout("tcp", to.String(), 300*time.Millisecond)
		if err == nil {
			_ = conn.Close()
		}
		return err
	}) == nil
}

// TestPolicyBeforePod attaches pods whose policy exists already: once ADD returns, no other pod reaches them. The agent
// sees the Pod late, is not running, or starts after a reboot of the node while a kubelet starts pods.
func TestPolicyBeforePod(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	n := c.nodes[0]
	const pods = "/api/v1/pods"
	c.api.Put(t, "/api/v1/namespaces", `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}`)
	c.api.Put(t, "/apis/networking.k8s.io/v1/networkpolicies", agentPolicy)
	config := n.startCNI()
	client := n.kubePod("client", "1")
	c.api.Put(t, pods, client.object())
	n.must(n.add(client, config)())

	closed := func(what string, web *kubePod) {
		t.Helper()
		server := testkit.Echo(t, web.Namespace, "tcp", netip.AddrPortFrom(web.addr, 0).String())
		testkit.Check(t, !client.connects(server), "%s: the client reaches it", what)
	}
	web := n.kubePod("web", "2")
	end := n.add(web, config)
	time.Sleep(2 * time.Second) // longer than an agent's patience
	c.api.Put(t, pods, web.object())
	n.must(end())
	closed("the Pod comes late", web)

	again := n.kubePod("web", "3")
	end = n.add(again, config)
	time.Sleep(200 * time.Millisecond)
	c.api.Put(t, pods, again.object())
	n.must(end())
	closed("another Pod of the name", again)

	n.kill()
	away := n.kubePod("web", "4")
	c.api.Put(t, pods, away.object())
	if err := n.add(away, config)(); err == nil || !strings.Contains(err.Error(), `"code":11`) ||
		!strings.Contains(err.Error(), n.dir+"/cni/cni.sock") {
		t.Errorf("no agent: ADD ended with %v", err)
	}
	end = n.add(away, config)
	n.startCNI()
	n.must(end())
	closed("the agent starts anew", away)

	n.kill()
	n.root += "-rebooted" // no map is there
	for _, p := range []*kubePod{client, away} {
		p.Namespace, p.id = testkit.Namespace(t, p.name), p.id+"-rebooted"
	}
	ends := []func() error{n.add(client, config), n.add(away, config)}
	n.startCNI()
	for _, end := range ends {
		n.must(end())
	}
	closed("a reboot", away)
}
