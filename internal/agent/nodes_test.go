// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"mustang/internal/kube/kubetest"
	"mustang/internal/nodenet"
	"mustang/internal/testkit"
)

// TestNodes joins a node with others as they come, change and go, and lets pods be attached once it has ranges, also
// while another node cannot be joined.
func TestNodes(t *testing.T) {
	s := kubetest.Start(t)
	n := &network{fails: true}
	rows := newTable()
	start(t, s, rows, joining(n))
	s.Put(t, nodes, nodeAt("far", "192.0.2.2", `"podCIDRs": ["10.1.2.0/24", "fd00:2::/64"]`, ""))
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", "", ""))
	n.wants(t, "no ranges", "{here [192.0.2.1] []} [{far [192.0.2.2] [10.1.2.0/24 fd00:2::/64]}]", "")
	o := s.Object(nodes, "", "here")
	testkit.Check(t, !strings.Contains(o, "NetworkUnavailable"), "pods cannot be attached, and the node has %s", o)
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", `"podCIDRs": ["10.1.1.0/24"]`,
		`, "conditions": [{"type": "NetworkUnavailable", "status": "True"}]`))
	n.wants(t, "ranges", "{here [192.0.2.1] [10.1.1.0/24]} [{far [192.0.2.2] [10.1.2.0/24 fd00:2::/64]}]",
		"[10.1.1.0/24] 1450")
	testkit.Eventually(t, time.Minute, func() error {
		if o := s.Object(nodes, "", "here"); !strings.Contains(o,
			`"reason":"MustangIsUp","status":"False","type":"NetworkUnavailable"`) {
			return fmt.Errorf("the node has %s", o)
		}
		return nil
	})
	s.Put(t, nodes, nodeAt("far", "192.0.2.3", `"podCIDRs": ["10.1.2.0/24"]`, ""))
	n.wants(t, "another address", "{here [192.0.2.1] [10.1.1.0/24]} [{far [192.0.2.3] [10.1.2.0/24]}]",
		"[10.1.1.0/24] 1450")
	rows.set(func() { rows.at = nil })
	s.Delete(nodes, "", "far")
	n.wants(t, "gone", "{here [192.0.2.1] [10.1.1.0/24]} []", "[10.1.1.0/24] 1450")
	testkit.Eventually(t, time.Minute, func() error { // the tunnel may be another one
		rows.Lock()
		defer rows.Unlock()
		if len(rows.at) != 1 {
			return errors.New("the programs of uplinks are not attached again")
		}
		return nil
	})
}

// TestExternalIPs has a Service with external addresses that cannot be served, and one with a pod's address: the other
// addresses are served, and an event names these. A range that a node cannot have reserves no address.
func TestExternalIPs(t *testing.T) {
	s, rows := kubetest.Start(t), newTable()
	s.Put(t, nodes, nodeAt("bad", "192.0.2.3", `"podCIDRs": ["128.0.0.0/1"]`, ""))
	s.Put(t, services, serviceAt("web", "10.96.0.1", `, "externalIPs": ["127.0.0.1", "0.0.0.0", "192.0.2.9", "10.1.2.7"]`))
	start(t, s, rows)
	rows.wants(t, "no node", "10.1.2.7:80/tcp []; 10.96.0.1:80/tcp []; 192.0.2.9:80/tcp []")
	s.Put(t, nodes, nodeAt("far", "192.0.2.2", `"podCIDRs": ["10.1.2.0/24"]`, ""))
	rows.wants(t, "a pod's address", "10.96.0.1:80/tcp []; 192.0.2.9:80/tcp []")
	// One event before the node came, and one after.
	wantsEvents(t, s, map[string]int{
		"127.0.0.1 is a loopback address": 2, "0.0.0.0 is the unspecified address": 2,
		"10.1.2.7 is within the pods' range 10.1.2.0/24 of node far": 1,
		`"reason":"NotServed"`: 2,
	})
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", `"podCIDRs": ["10.1.2.0/25"]`, ""))
	s.Delete(nodes, "", "far")
	s.Put(t, services, serviceAt("other", "10.96.0.2", `, "externalIPs": ["10.1.2.200"]`))
	rows.wants(t, "its own range", "10.1.2.200:80/tcp []; 10.96.0.1:80/tcp []; 10.96.0.2:80/tcp []; 192.0.2.9:80/tcp []")
	s.Delete(nodes, "", "here")
	rows.wants(t, "no range",
		"10.1.2.200:80/tcp []; 10.1.2.7:80/tcp []; 10.96.0.1:80/tcp []; 10.96.0.2:80/tcp []; 192.0.2.9:80/tcp []")
	s.Put(t, nodes, `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "public"}, "status": {"addresses": `+
		`[{"type": "ExternalIP", "address": "192.0.2.9"}]}}`)
	rows.wants(t, "another node's", "10.1.2.200:80/tcp []; 10.1.2.7:80/tcp []; 10.96.0.1:80/tcp []; 10.96.0.2:80/tcp []")
}

// TestClaimedExternalIPs has a Node claim a range in a network of this host, in which a Service has an external
// address: it is served, and addresses of the node and the API server are not.
func TestClaimedExternalIPs(t *testing.T) {
	s, rows := kubetest.Start(t), newTable()
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", `"podCIDRs": ["10.1.1.0/24"]`, ""))
	s.Put(t, nodes, nodeAt("bad", "192.0.2.3", `"podCIDRs": ["198.51.100.0/25"]`, ""))
	s.Put(t, services, serviceAt("web", "10.96.0.1",
		`, "externalIPs": ["198.51.100.9", "10.1.1.9", "203.0.113.5", "192.0.2.1", "198.51.100.1"]`))
	n := &network{}
	a := start(t, s, rows, joining(n))
	rows.wants(t, "a claim of the host's network", "10.96.0.1:80/tcp []; 198.51.100.9:80/tcp []")
	ips := fmt.Sprint(a.ClusterIPs())
	testkit.Check(t, ips == "[10.96.0.1]", "cluster IPs %s", ips)
}

// TestKeyIsPublished publishes the key of WireGuard in the Node, again once the annotation is gone, and removes it
// without encryption. A node without a key gets an event.
func TestKeyIsPublished(t *testing.T) {
	s := kubetest.Start(t)
	here := nodeAt("here", "192.0.2.1", `"podCIDRs": ["10.1.1.0/24"]`, "")
	s.Put(t, nodes, here)
	s.Put(t, nodes, nodeAt("far", "192.0.2.2", `"podCIDRs": ["10.1.2.0/24"]`, ""))
	published := func(what string, want bool) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			if o := s.Object(nodes, "", "here"); strings.Contains(o, `"mustang/wireguard-key":"public"`) != want {
				return fmt.Errorf("%s: %s", what, o)
			}
			return nil
		})
	}
	encrypting := func(o *Options) {
		o.Key, o.Nodes = "public", keyless{&network{}}
	}
	a := agentOver(t, s, newTable(), encrypting)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- a.Run(ctx) }()
	published("first", true)
	s.Put(t, nodes, here)
	published("again", true)
	wantsEvents(t, s, map[string]int{`"message":"no key"`: 1, `"reason":"NotJoined"`: 1})
	cancel()
	testkit.Succeed(t, <-ended)
	start(t, s, newTable(), joining(&network{}))
	published("off", false)
}

// TestPodsAwaitRoutes has ADD wait while the routes of WireGuard cannot be made. A node that cannot be joined and a
// route of another program delay no pod.
func TestPodsAwaitRoutes(t *testing.T) {
	s, n := kubetest.Start(t), &network{fails: true}
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", "", ""))
	a := start(t, s, newTable(), joining(n), func(o *Options) { o.Key = "public" })
	await := func(o *Agent, limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return o.AwaitPod(ctx, "", "", "")
	}
	n.wants(t, "fails", "{here [192.0.2.1] []} []", "")
	testkit.Eventually(t, time.Minute, func() error {
		if err := await(a, time.Second); err == nil || !strings.Contains(err.Error(), "has not made the encrypted routes") {
			return fmt.Errorf("without routes: %v", err)
		}
		return nil
	})
	n.Lock()
	n.fails = false
	n.Unlock()
	testkit.Succeed(t, await(a, time.Minute))
	keyed := start(t, s, newTable(), func(o *Options) { o.Key, o.Nodes = "public", keyless{&network{}} })
	testkit.Succeed(t, await(keyed, time.Minute))
}

// keyless is a network in which a node lacks a key, and another program has a route.
type keyless struct{ *network }

func (keyless) Apply(nodenet.Node, []nodenet.Node) error {
	return errors.Join(&nodenet.NodeError{Node: "far", Text: "no key", Alike: true},
		fmt.Errorf("add route: %w", nodenet.ErrOtherRoute))
}
