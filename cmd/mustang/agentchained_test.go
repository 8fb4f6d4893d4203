// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/testkit"
)

const referencePlugins = "/usr/lib/cni" // where Debian's package containernetworking-plugins has them

// chainedConfig is the plugin that docs/replace-kube-proxy.md adds to the list of another plugin.
const chainedConfig = `{"type": "mustang-cni", "chained": true, "services": "both", "policies": "agent"}`

// besideFlags are the agent's flags there.
var besideFlags = []string{"--routing=off", "--masquerade=false", "--cni-conf-dir="}

// startBeside starts the node's agent without a network of its own: another plugin has it, with devices by which pods
// of other nodes are reached.
func (n *agentNode) startBeside(more ...string) {
	n.t.Helper()
	n.launch(slices.Concat([]string{"--cni-socket", n.dir + "/cni/cni.sock"}, besideFlags, more)...)
}

// addBehind attaches a pod by the reference plugin ptp, and by Mustang's behind it.
func (n *agentNode) addBehind(p *kubePod) {
	n.t.Helper()
	config := fmt.Sprintf(
		`{"cniVersion": "1.0.0", "name": "theirs", "type": "ptp", "ipam": {"type": "host-local", "dataDir": %q,
"ranges": [[{"subnet": "10.1.%d.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}`, n.dir+"/host-local", n.number)
	cmd := exec.Command(filepath.Join(referencePlugins, "ptp"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+p.id, "CNI_IFNAME=eth0", "CNI_PATH="+
		referencePlugins, "CNI_NETNS="+p.Path())
	var stdout bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(config), &stdout, os.Stderr
	n.must(n.ns.Start(cmd))
	err := cmd.Wait()
	testkit.Require(n.t, err == nil, "ptp: %v: %s", err, &stdout)
	var ours map[string]any
	n.must(json.Unmarshal([]byte(chainedConfig), &ours))
	ours["cniVersion"], ours["name"], ours["prevResult"] = "1.0.0", "theirs", json.RawMessage(stdout.Bytes())
	behind := testkit.Must(json.Marshal(ours))(n.t)
	n.must(n.add(p, behind)())
}

// otherNetwork makes the ways of another network to the pods of the other node: through the segment, or a tunnel like
// flannel's.
func (c *cluster) otherNetwork(tunnel bool) {
	for i, n := range c.nodes {
		other := 2 - i
		in := "-n " + n.ns.Name() + " "
		if !tunnel {
			n.ip(in + fmt.Sprintf("route add 10.1.%d.0/24 via 192.0.2.%[1]d", other))
			continue
		}
		n.ip(in + fmt.Sprintf("link add flannel.1 address 02:00:00:00:01:0%d type vxlan id 1 local 192.0.2.%[1]d dstport "+
			"8472 nolearning", n.number))
		n.ip(in + fmt.Sprintf("addr add 10.1.%d.0/32 dev flannel.1", n.number))
		n.ip(in + "link set flannel.1 up mtu 1450")
		n.ip(in + fmt.Sprintf("neigh add 10.1.%d.0 lladdr 02:00:00:00:01:0%[1]d dev flannel.1", other))
		n.ip(in + fmt.Sprintf("route add 10.1.%d.0/24 via 10.1.%[1]d.0 dev flannel.1 onlink", other))
		out, err := exec.Command("bridge", strings.Fields(in+
			fmt.Sprintf("fdb add 02:00:00:00:01:0%d dev flannel.1 dst 192.0.2.%[1]d", other))...).CombinedOutput()
		testkit.Require(c.t, err == nil, "bridge: %v: %s", err, out)
	}
}

// TestDocumentedChain compares the documentation with the test below.
func TestDocumentedChain(t *testing.T) {
	t.Parallel()
	docs := testkit.Must(os.ReadFile("../../docs/replace-kube-proxy.md"))(t)
	for _, text := range append([]string{chainedConfig}, besideFlags...) {
		testkit.Check(t, bytes.Contains(docs, []byte(text)), "the documentation has no %s", text)
	}
}

// TestAgentBesideOtherPlugin has a cluster keep its CNI plugin: the agent has Services alone, for pods that the plugin
// attaches behind the other.
func TestAgentBesideOtherPlugin(t *testing.T) {
	t.Parallel()
	testkit.RequireTool(t, "bridge")
	testkit.RequireTool(t, filepath.Join(referencePlugins, "ptp"))
	for _, test := range []struct {
		name  string
		flags []string
	}{{"routes", nil}, {"tunnel", []string{"--uplink=eth0", "--uplink=flannel.1"}}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.otherNetwork(test.name == "tunnel")
			c.api.Put(t, "/api/v1/namespaces", `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}`)
			for _, n := range c.nodes {
				n.cgroup = testkit.Cgroup(t)
				n.startBeside(test.flags...)
			}
			client := c.nodes[0].kubePod("client", "1")
			c.api.Put(t, "/api/v1/pods", client.object())
			c.nodes[0].addBehind(client)
			for i, n := range c.nodes {
				name := fmt.Sprint("web", n.number)
				web := n.kubePod(name, fmt.Sprint("u", n.number))
				c.api.Put(t, "/api/v1/pods", strings.Replace(web.object(), `"node1"`, fmt.Sprintf(`"node%d"`, n.number), 1))
				n.addBehind(web)
				port := testkit.Echo(t, web.Namespace, "tcp", netip.AddrPortFrom(web.addr, 0).String()).Port()
				c.api.Put(t, "/api/v1/services",
					fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": %q},
"spec": {"type": "NodePort", "clusterIP": "10.96.0.%d", "ports": [{"port": 80, "nodePort": %d}]}}`,
						name, n.number, 30080+n.number))
				c.api.Put(t, "/apis/discovery.k8s.io/v1/endpointslices",
					strings.Replace(strings.Replace(fmt.Sprintf(agentSlice, port, web.addr),
						`"name": "web-1"`, fmt.Sprintf(`"name": "%s-1"`, name), 1), `service-name": "web"`, `service-name": "`+
						name+`"`, 1))
				testkit.Eventually(t, time.Minute, func() error {
					if _, err := testkit.RoundTrip(t, client.Namespace, "tcp", fmt.Sprintf("10.96.0.%d:80", n.number),
						[]byte("x")); err != nil {
						return fmt.Errorf("a pod at the cluster IP of a pod of node%d: %w", i+1, err)
					}
					if _, err := testkit.RoundTrip(t, c.nodes[1].ns, "tcp", fmt.Sprintf("192.0.2.1:%d", 30080+n.number),
						[]byte("x")); err != nil {
						return fmt.Errorf("node1's port of a pod of node%d: %w", i+1, err)
					}
					return nil
				})
			}
			for _, n := range c.nodes {
				if routes := n.routes(); strings.Contains(routes, "proto 109") || strings.Contains(routes, "mst-vxlan") {
					t.Errorf("node%d has routes %s", n.number, routes)
				}
				testkit.Check(t, !n.masquerades(), "node%d has the agent's table of nftables", n.number)
			}
		})
	}
}
