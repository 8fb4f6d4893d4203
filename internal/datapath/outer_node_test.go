// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"mustang/internal/policy"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// onlyOutsideToA is a policy that lets a machine outside reach the pod a, and nobody else but the node.
var onlyOutsideToA = fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: outside-to-a}, `+
	`spec: {podSelector: {matchLabels: {app: a}}, ingress: [{from: [{ipBlock: {cidr: %s/32}}, {ipBlock: {cidr: "%s/128"}}]}]}}`, outside4, outside6)

// TestForgingAsNode has root in a pod pose as the node, which policies let reach its pods, in all ways that leave no socket to know it by.
// The node itself reaches the pod, also in the name of a machine for which it translates.
func TestForgingAsNode(t *testing.T) {
	onLinks(t, "macvlan, ipvlan-l2, ipvlan-l3, ipvlan-l3s", func(t *testing.T, m linkMode) {
		f := newForger(t, m)
		f.labelled(t, f.d)
		applyPolicies(t, f.d, onlyOutsideToA)
		strangers := f.strangers(t)
		for family, addr := range []string{podA4, podA6} {
			victim, node := listenIn(t, f.pods[0], addr), netip.MustParseAddr([]string{gateway4, gateway6}[family])
			outside := [2]netip.Addr{outside4, outside6}[family]
			for _, way := range strangers {
				t.Run(fmt.Sprintf("from %s, %s", node, way.name), func(t *testing.T) { f.tryStranger(t, victim, node, outside, way) })
			}
			before := counts(t, f.d)
			if err := sendUDP(f.network.host, node.String(), victim); err != nil {
				t.Errorf("from the node at %s: %v", node, err)
			}
			f.translated(t, family, victim)
			if dropped := delta(t, f.d, before)["drop_source"]; dropped != 0 {
				t.Errorf("drop_source: %d", dropped)
			}
		}
	})
}

// TestForgingAsNodeByHost has root in a pod pose as the node to pods that the host routes to: one on the same parent, and one behind a veth.
// IPv6 routes packets that come with an address of the host. The host still reaches itself there.
func TestForgingAsNodeByHost(t *testing.T) {
	onLinks(t, "macvlan, ipvlan-l2, ipvlan-l3, ipvlan-l3s", func(t *testing.T, m linkMode) {
		f := newForger(t, m)
		f.labelled(t, f.d)
		applyPolicies(t, f.d, onlyOutsideToA)
		for _, node := range []string{gateway4, gateway6} {
			if err := sendUDP(f.network.host, node, listenIn(t, f.network.host, node)); err != nil {
				t.Errorf("the host to itself at %s: %v", node, err)
			}
		}
		if strings.HasPrefix(m.name, "ipvlan-l3") {
			return // what such pods send is the host's own to its routing: TestForgingAsNode
		}
		f.next = f.reachHost(t)
		veth := f.addVeth(t)
		pod := &policy.Pod{Namespace: "default", Name: "c", Labels: map[string]string{"app": "a"}}
		spec := EndpointSpec{Namespace: veth, IfName: "eth0", Host: f.network.host, Pod: pod}
		must2(f.d.Endpoints().Put(t.Context(), spec))(t)
		for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			succeed(t, rtnl.In(f.network.host).SetSysctl(key, "1"))
		}
		strangers := f.strangers(t)
		for family, addr := range []string{podA4, podA6} {
			node, outside := netip.MustParseAddr([]string{gateway4, gateway6}[family]), [2]netip.Addr{outside4, outside6}[family]
			for _, victim := range []net.PacketConn{listenIn(t, f.pods[0], addr), listenIn(t, veth, routedPod[family].String())} {
				for _, way := range strangers {
					t.Run(fmt.Sprintf("to %s, %s", victim.LocalAddr(), way.name), func(t *testing.T) {
						f.tryStranger(t, victim, node, outside, way)
					})
				}
			}
		}
	})
}

// translated has a machine behind the host send to a pod, in the host's name.
func (f *forger) translated(t *testing.T, family int, victim net.PacketConn) {
	t.Helper()
	testkit.RequireTool(t, "nft")
	behind := testkit.Namespace(t, "behind")
	own, via := []string{"192.168.31.31", "fd00:31::31"}[family], []string{"192.168.31.1", "fd00:31::1"}[family]
	device, table := fmt.Sprint("behind", family), []string{"ip", "ip6"}[family]
	length := []string{"/24", "/64 nodad"}[family]
	f.run(t, strings.NewReplacer("BEHIND", behind.Name(), "DEVICE", device).Replace(`
		-n HOST link add DEVICE type veth peer name eth0 netns BEHIND
		-n HOST link set DEVICE up
		-n BEHIND link set eth0 up
		-n HOST addr add `+strings.Replace(length, "/", via+"/", 1)+` dev DEVICE
		-n BEHIND addr add `+strings.Replace(length, "/", own+"/", 1)+` dev eth0
		-n BEHIND route add default via `+via+`
		netns exec HOST nft add table `+table+` nat
		netns exec HOST nft add chain `+table+` nat post {type nat hook postrouting priority 100;}
		netns exec HOST nft add rule `+table+` nat post iifname DEVICE masquerade`))
	testkit.Eventually(t, 5*time.Second, func() error {
		if err := sendUDP(behind, own, victim); err != nil {
			return errors.Join(errors.New("from behind the node"), err)
		}
		return nil
	})
}
