// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types/create"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/cni/install"
	"mustang/internal/cni/netconf"
	"mustang/internal/cni/record"
	"mustang/internal/datapath"
	"mustang/internal/kube/kubetest"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// agentNode is a node of a cluster, with an agent of its own and the plugin.
type agentNode struct {
	*cluster
	number    int
	ns        *netns.Namespace
	dir, root string
	addresses []netip.Prefix
	agent     *exec.Cmd
	cgroup    string // whose sockets the plugin has translated; empty: the root
	pod       *netns.Namespace
	pods      []netip.Addr // addresses of the pod
}

// cluster is two nodes on a segment, and an API server.
type cluster struct {
	t      *testing.T
	api    *kubetest.Server
	config string
	wire   *netns.Namespace
	nodes  []*agentNode
}

const nodeList = "/api/v1/nodes"

func newCluster(t *testing.T) *cluster {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	testkit.RequireTool(t, "ip")
	c := &cluster{t: t, api: kubetest.Start(t)}
	c.config = c.api.Kubeconfig(t)
	wire := testkit.Namespace(t, "wire")
	c.wire = wire
	c.ip("-n " + wire.Name() + " link add br0 up type bridge")
	for i := 1; i <= 2; i++ {
		n := &agentNode{cluster: c, number: i, ns: testkit.Namespace(t, fmt.Sprint("node", i)), dir: t.TempDir()}
		n.root = filepath.Join(testkit.BPFFS(t), fmt.Sprint("root", i))
		port := fmt.Sprint("port", i)
		c.must(rtnl.AddVeth(rtnl.VethEnd{Namespace: n.ns, Name: "eth0"}, rtnl.VethEnd{Namespace: wire, Name: port}, 1500))
		c.ip("-n " + wire.Name() + " link set " + port + " master br0")
		n.setAddress(i)
		c.nodes = append(c.nodes, n)
	}
	// As every cluster has.
	c.api.Put(t, "/api/v1/services",
		`{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "kubernetes"}}`)
	c.api.Put(t, "/apis/discovery.k8s.io/v1/endpointslices",
		`{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"namespace": "default",
"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}}, "addressType": "IPv4", "endpoints": [], "ports": []}`)
	return c
}

func (c *cluster) must(err error) {
	c.t.Helper()
	testkit.Succeed(c.t, err)
}

func (c *cluster) ip(args string) string {
	c.t.Helper()
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	testkit.Require(c.t, err == nil, "ip %s: %v: %s", args, err, out)
	return string(out)
}

// setAddress changes the addresses of the node, and its object in the API server.
func (n *agentNode) setAddress(last int) {
	n.t.Helper()
	for _, p := range n.addresses {
		n.ip(fmt.Sprintf("-n %s addr del %v dev eth0", n.ns.Name(), p))
	}
	n.addresses = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", last)),
		netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", last))}
	n.must(rtnl.In(n.ns).Configure("eth0", rtnl.DeviceConfig{Addresses: n.addresses, Up: true}))
	n.api.Put(n.t, nodeList, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node%d"},
"spec": {"podCIDRs": ["10.1.%[1]d.0/24", "fd00:1:%[1]d::/64"]},
"status": {"addresses": [{"type": "InternalIP", "address": %q}, {"type": "InternalIP", "address": %q}]}}`,
		n.number, n.addresses[0].Addr(), n.addresses[1].Addr()))
}

// start starts an agent. With VXLAN, pods have programs for packets.
func (n *agentNode) start(routing string) {
	n.t.Helper()
	services := map[string]string{"vxlan": "tc"}[routing]
	n.launch("--cni-socket=none", "--routing", routing, "--link=veth", "--services="+cmp.Or(services, "off"),
		"--cni-conf-dir", n.dir+"/conf")
}

func (n *agentNode) launch(more ...string) {
	n.t.Helper()
	args := []string{"agent", "--node", fmt.Sprint("node", n.number), "--kubeconfig", n.config, "--netns", n.ns.Path(),
		"--cgroup=none", "--run-dir", n.dir + "/agent"}
	n.agent = exec.Command("mustang", append(args, more...)...)
	n.agent.Env, n.agent.Stderr = n.env(), os.Stderr
	n.must(n.agent.Start())
	n.t.Cleanup(n.kill)
}

// written returns the plugin's configuration once the agent has written the file.
func (n *agentNode) written() (config []byte) {
	n.t.Helper()
	testkit.Eventually(n.t, time.Minute, func() error {
		conflist, err := os.ReadFile(filepath.Join(n.dir, "conf", install.DefaultConfName))
		if err == nil {
			config, err = install.PluginConfig(conflist)
		}
		return err
	})
	return config
}

func (n *agentNode) kill() {
	_, _ = n.agent.Process.Kill(), n.agent.Wait()
}

func (n *agentNode) attach() []byte {
	n.t.Helper()
	config := n.written()
	n.pod = testkit.Namespace(n.t, fmt.Sprint("pod", n.number))
	stdout := n.call("ADD", config)
	versioned := testkit.Must(create.CreateFromBytes(stdout))(n.t)
	n.attached(testkit.Must(types100.NewResultFromResult(versioned))(n.t))
	return config
}

func (n *agentNode) attached(result *types100.Result) {
	for _, ip := range result.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		n.pods = append(n.pods, addr.Unmap())
	}
}

func (n *agentNode) call(verb string, config []byte) []byte {
	n.t.Helper()
	cmd := exec.Command(staticProgram(n.t, netconf.PluginType))
	cmd.Env = append(n.env(), "CNI_COMMAND="+verb, "CNI_CONTAINERID=pod", "CNI_IFNAME=eth0", "CNI_PATH=/nowhere",
		"CNI_NETNS="+n.pod.Path())
	var stdout bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(config), &stdout, os.Stderr
	n.must(n.ns.Start(cmd))
	err := cmd.Wait()
	testkit.Require(n.t, err == nil, "%s: %v: %s", verb, err, &stdout)
	return stdout.Bytes()
}

// env has programs use the node's own directories.
func (n *agentNode) env() []string {
	return append(os.Environ(), cli.EnvBPFRoot+"="+n.root, "MUSTANG_CNI_STATE_DIR="+n.dir+"/state", "MUSTANG_CNI_RUN_DIR="+
		n.dir+"/run", "MUSTANG_CNI_CGROUP="+n.cgroup)
}

// joined waits until pods of the nodes, and nodes and pods, reach each other.
func (c *cluster) joined(what string) {
	c.t.Helper()
	for i, to := range c.nodes {
		from := c.nodes[1-i]
		for f, addr := range to.pods {
			for _, network := range []string{"tcp", "udp"} {
				server := testkit.Echo(c.t, to.pod, network, netip.AddrPortFrom(addr, 0).String()).String()
				testkit.Eventually(c.t, time.Minute, func() error {
					client, err := testkit.RoundTrip(c.t, from.pod, network, server, make([]byte, 1450-48))
					if err == nil && client.Addr() != from.pods[f] {
						err = fmt.Errorf("the client is %v", client)
					}
					if err == nil {
						_, err = testkit.RoundTrip(c.t, from.ns, network, server, []byte("x"))
					}
					if err != nil {
						err = fmt.Errorf("%s: %s to %v: %w", what, network, addr, err)
					}
					return err
				})
			}
			onNode := testkit.Echo(c.t, to.ns, "tcp", netip.AddrPortFrom(to.addresses[f].Addr(), 0).String()).String()
			seen, err := testkit.RoundTrip(c.t, from.pod, "tcp", onNode, []byte("x"))
			testkit.Check(c.t, err == nil && seen.Addr() == from.addresses[f].Addr(),
				"%s: pod to the other node: %v, seen as %v", what, err, seen)
		}
	}
}

func (n *agentNode) routes() string {
	n.t.Helper()
	name := n.ns.Name()
	return n.ip("-n "+name+" -4 route show proto 109") + n.ip("-n "+name+" -6 route show proto 109") +
		n.ip("-n "+name+" -o link show type vxlan")
}

// remotes returns how many packets programs sent to pods of other nodes and received, and the number of ways there.
func (n *agentNode) remotes() (sent, received uint64, ways int) {
	n.t.Helper()
	d := testkit.Must(datapath.OpenExisting(datapath.Options{Root: n.root}))(n.t)
	defer d.Close()
	for _, c := range testkit.Must(d.Flows().Counters())(n.t) {
		switch c.Name {
		case "to_remote":
			sent = c.Packets
		case "from_remote":
			received = c.Packets
		}
	}
	return sent, received, len(testkit.Must(d.Remotes().List())(n.t))
}

func (n *agentNode) masquerades() bool {
	n.t.Helper()
	out, err := exec.Command("ip", "netns", "exec", n.ns.Name(), "nft", "list", "tables").CombinedOutput()
	testkit.Require(n.t, err == nil, "nft: %v: %s", err, out)
	return strings.Contains(string(out), "mustang-agent")
}

// TestLinkChange starts an agent with another link mode while pods are attached: the configuration stays until the pods
// are gone, or with --link-change=drain. The agent names the pods.
func TestLinkChange(t *testing.T) {
	dir := t.TempDir()
	attached := func(network, link string, n int, path ...string) (removes []func() error) {
		for i := range n {
			r, err := record.Store{Root: dir}.Open(network, record.Owner{ContainerID: fmt.Sprint(link, i), IfName: "eth0"}, true)
			testkit.Succeed(t, err)
			r.Link, r.Netns = link, strings.Join(path, "")
			testkit.Succeed(t, r.Save())
			removes = append(removes, func() error { defer r.Close(); return r.Remove() })
		}
		return removes
	}
	a := agentNodes{place: install.Place{ConfDir: filepath.Join(dir, "conf"), ConfName: install.DefaultConfName},
		runDir: dir, bpfRoot: dir, change: linkRefuse}
	a.pods = install.Network{Name: "mustang", Services: "both", CNIVersion: "1.0.0"}
	attach := func(link string) (conf string, err error) {
		a.pods.Link = link
		err = a.Attach(t.Context(), []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, 1500)
		data, _ := os.ReadFile(filepath.Join(dir, "conf", install.DefaultConfName))
		return string(data), err
	}
	wants := func(what, link, inForce, refused string) {
		t.Helper()
		conf, err := attach(link)
		testkit.Check(t, strings.Contains(conf, fmt.Sprintf(`"link": %q`, inForce)) && (err == nil) == (refused == "") &&
			(err == nil || err.Error() == refused),
			"%s: %v, configuration %s", what, err, conf)
	}
	wants("no pods", "veth", "veth", "")
	removes := attached("mustang", "veth", 2)
	attached("other", "macvlan", 1)
	attached("mustang", "macvlan", 1, filepath.Join(dir, "gone"))
	wants("the same", "veth", "veth", "")
	wants("one that reaches them", "netkit", "netkit", "")
	wants("another", "bridge", "netkit",
		"--link=bridge is not in force without --link-change=drain: pods with link veth: 2; new pods with link bridge may "+
			"not reach them: drain the node")
	have := a.apart()
	testkit.Check(t, len(have) == 1, "the warnings are %q", have)
	a.change = linkDrain
	wants("it is to be drained", "bridge", "bridge", "")
	wants("and back", "veth", "veth", "")
	a.change = linkRefuse
	for _, remove := range removes {
		testkit.Succeed(t, remove())
	}
	wants("drained", "bridge", "bridge", "")
	damaged := record.Store{Root: dir}.Path("mustang", record.Owner{ContainerID: "x", IfName: "eth0"})
	testkit.Succeed(t, os.WriteFile(damaged, []byte("{"), 0o600))
	wants("a damaged record", "veth", "bridge", "--link=veth is not in force without --link-change=drain: record "+damaged+
		" cannot be read: run DEL, or remove it")
}

func (c *cluster) available(node string) {
	c.t.Helper()
	testkit.Eventually(c.t, time.Minute, func() error {
		var o struct {
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
		if err := json.Unmarshal([]byte(c.api.Object(nodeList, "", node)), &o); err != nil {
			return err
		}
		if got := fmt.Sprint(o.Status.Conditions); got != "[{NetworkUnavailable False}]" {
			return fmt.Errorf("conditions %s", got)
		}
		return nil
	})
}

// TestAgentJoinsNodes has two nodes with the agent and the plugin. Pods reach each other by each kind of routing.
// Agents are killed while they work, a node gets other addresses while its agent is away, and a node is deleted.
func TestAgentJoinsNodes(t *testing.T) {
	t.Parallel()
	for _, routing := range []string{"auto", "vxlan"} {
		t.Run(routing, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			a, b := c.nodes[0], c.nodes[1]
			for _, n := range c.nodes {
				n.start(routing)
				n.attach()
			}
			c.joined("first")
			for _, n := range c.nodes {
				sent, received, ways := n.remotes()
				has := routing == "vxlan"
				testkit.Check(t, sent > 0 == has && received > 0 == has && ways > 0, "%s: programs sent %d and received %d packets by %d ways",
					n.ns.Name(), sent, received, ways)
			}
			c.available("node1")
			whole := a.routes()
			a.kill()
			routes := a.routes()
			testkit.Check(t, routes == whole, "routes\n%s\nafter the agent was killed\n%s", whole, routes)
			a.ip("-n " + a.ns.Name() + " route flush proto 109")
			_ = exec.Command("ip", "-n", a.ns.Name(), "link", "del", "mst-vxlan").Run() // if there is one
			a.start(routing)
			testkit.Eventually(t, time.Minute, func() error {
				if a.routes() == "" {
					return errors.New("no route yet")
				}
				return nil
			})
			a.kill() // once the first is there
			b.setAddress(77)
			a.start(routing)
			c.joined("killed agents, and another address")

			for _, n := range c.nodes { // the kernel deletes routes with it
				n.ip("-n " + n.ns.Name() + " link set eth0 down")
				n.ip("-n " + n.ns.Name() + " link set eth0 up")
				for _, p := range n.addresses {
					n.ip(fmt.Sprintf("-n %s addr replace %v dev eth0 nodad", n.ns.Name(), p))
				}
			}
			if routing == "vxlan" {
				a.ip("-n " + a.ns.Name() + " link del mst-vxlan")
			}
			c.joined("a device was down")
			c.api.Delete(nodeList, "", "node2")
			testkit.Eventually(t, time.Minute, func() error {
				if routes := a.routes(); routes != "" {
					return errors.New("the node is gone, and there is " + routes)
				}
				return nil
			})
			a.kill()
			b.kill()
			for _, n := range c.nodes {
				cmd := exec.Command("mustang", "agent", "cleanup", "--netns", n.ns.Path(), "--run-dir", n.dir+"/agent")
				cmd.Env = n.env()
				out, err := cmd.CombinedOutput()
				testkit.Check(t, err == nil && len(out) == 0, "cleanup: %v: %s", err, out)
				_, _, ways := n.remotes()
				testkit.Check(t, ways == 0, "after cleanup programs have %d ways to other nodes", ways)
				routes := n.routes()
				testkit.Check(t, routes == "", "after cleanup there is %s", routes)
				testkit.Check(t, !n.masquerades(), "after cleanup there is the agent's table of nftables")
			}
			_, err := os.Stat(filepath.Join(a.dir, "conf", install.DefaultConfName))
			testkit.Check(t, !errors.Is(err, fs.ErrNotExist), "the configuration is gone")
		})
	}
}
