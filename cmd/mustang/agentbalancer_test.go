// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// balancerSlice has the address of a pod on a node.
const balancerSlice = `{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": %q,
"metadata": {"namespace": "shop", "name": "web-%[1]s-%d", "labels": {"kubernetes.io/service-name": "web"}},
"ports": [{"port": 8080}], "endpoints": [{"addresses": [%q], "nodeName": "node%[2]d"}]}`

func balancerService(name, more string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": %q},
"spec": {"type": "LoadBalancer", "clusterIP": "", "ports": [{"port": 80, "targetPort": 8080}], %s}}`, name, more)
}

// ready puts the node's object with a condition.
func (n *agentNode) ready(is string) {
	n.t.Helper()
	text := n.api.Object(nodeList, "", fmt.Sprint("node", n.number))
	text, _, _ = strings.Cut(text, `,"status":`)
	n.api.Put(n.t, nodeList, fmt.Sprintf(`%s, "status": {"conditions": [{"type": "Ready", "status": %q},
{"type": "NetworkUnavailable", "status": "False"}],
"addresses": [{"type": "InternalIP", "address": %q}, {"type": "InternalIP", "address": %q}]}}`, text, is,
		n.addresses[0].Addr(), n.addresses[1].Addr()))
}

// TestLoadBalancerWithoutCloud has a client on the nodes' segment reach a Service at addresses of pools. The addresses
// move to the other node, and the other agent assigns addresses after the first one is killed.
func TestLoadBalancerWithoutCloud(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	wire := c.wire
	client := testkit.Namespace(t, "client")
	c.must(rtnl.AddVeth(rtnl.VethEnd{Namespace: client, Name: "eth0"}, rtnl.VethEnd{Namespace: wire, Name: "port3"}, 1500))
	c.ip("-n " + wire.Name() + " link set port3 master br0")
	c.must(rtnl.In(client).Configure("eth0", rtnl.DeviceConfig{Up: true, Addresses: []netip.Prefix{
		netip.MustParsePrefix("192.0.2.100/24"), netip.MustParsePrefix("2001:db8::64/64")}}))
	for _, n := range c.nodes {
		n.ready("True")
		n.launch("--cni-socket=none", "--routing=native", "--link=veth", "--services=tc", "--cni-conf-dir", n.dir+"/conf",
			"--lb-pool=192.0.2.0/29", "--lb-pool=2001:db8::f0/126")
		n.attach()
		for f, addr := range n.pods {
			testkit.Echo(t, n.pod, "tcp", netip.AddrPortFrom(addr, 8080).String())
			c.api.Put(t, "/apis/discovery.k8s.io/v1/endpointslices",
				fmt.Sprintf(balancerSlice, []string{"IPv4", "IPv6"}[f], n.number, addr))
		}
	}
	addresses := []string{"192.0.2.3", "2001:db8::f1"} // 192.0.2.1 and 192.0.2.2 are the nodes'
	c.api.Put(t, "/api/v1/services", balancerService("web", `"ipFamilies": ["IPv4", "IPv6"]`))
	c.gives("web", addresses...)
	macs := map[string]*agentNode{}
	for _, n := range c.nodes {
		macs[testkit.Must(rtnl.In(n.ns).Device("eth0"))(t).MAC.String()] = n
	}
	for _, addr := range addresses {
		c.reached(client, addr)
		mac := c.neighbour(client, addr)
		owner := macs[mac]
		testkit.Require(t, owner != nil, "%s is at %s, which is not a node", addr, mac)
		probe := func() {
			c.ip(fmt.Sprintf("-n %s neigh replace %s lladdr %s dev eth0 nud probe", client.Name(), addr, mac))
		}
		probe()
		testkit.Eventually(t, time.Minute, func() error {
			out := c.ip("-n " + client.Name() + " neigh show " + addr)
			if strings.Contains(out, "REACHABLE") {
				return nil
			}
			if !strings.Contains(out, "PROBE") { // an announcement ends the probing of a neighbour
				probe()
			}
			return fmt.Errorf("a neighbour asks the owner again: %s", out)
		})
		owner.ready("Unknown")
		testkit.Eventually(t, time.Minute, func() error {
			if now := c.neighbour(client, addr); now == mac || macs[now] == nil {
				return fmt.Errorf("%s is at %s, as before", addr, now)
			}
			return nil
		})
		c.reached(client, addr)
		owner.ready("True")
	}
	leader := c.nodes[0]
	lease := c.api.Object("/apis/coordination.k8s.io/v1/leases", "kube-system", "mustang-lb")
	if strings.Contains(lease, `"holderIdentity":"node2"`) {
		leader = c.nodes[1]
	}
	leader.kill()
	c.api.Put(t, "/api/v1/services", balancerService("late", `"ipFamilies": ["IPv4"]`))
	c.gives("late", "192.0.2.4")
}

// gives waits until the load balancer of a Service has addresses.
func (c *cluster) gives(name string, addresses ...string) {
	c.t.Helper()
	want := `"status":{"loadBalancer":{"ingress":[`
	for i, addr := range addresses {
		if i > 0 {
			want += ","
		}
		want += fmt.Sprintf(`{"ip":%q,"ipMode":"VIP"}`, addr)
	}
	testkit.Eventually(c.t, 2*time.Minute, func() error { // the Lease of an agent that is killed ends in half a minute
		if have := c.api.Object("/api/v1/services", "shop", name); !strings.Contains(have, want+"]}}") {
			return fmt.Errorf("Service %s is %s", name, have)
		}
		return nil
	})
}

func (c *cluster) reached(client *netns.Namespace, addr string) {
	c.t.Helper()
	to := netip.AddrPortFrom(netip.MustParseAddr(addr), 80).String()
	testkit.Eventually(c.t, time.Minute, func() error {
		_, err := testkit.RoundTrip(c.t, client, "tcp", to, []byte("x"))
		return err
	})
}

// neighbour returns the MAC address at which a client has an address.
func (c *cluster) neighbour(client *netns.Namespace, addr string) string {
	c.t.Helper()
	_, mac, _ := strings.Cut(c.ip("-n "+client.Name()+" neigh show "+addr), "lladdr ")
	mac, _, _ = strings.Cut(mac, " ")
	return mac
}
