// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/internal/cni/install"
	"mustang/internal/testkit"
)

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

// TestRangeOfAnotherNode makes the objects of two nodes anew without pods, and the second one gets the range that the
// first one had: the first one leads there, before it has a pod again and afterwards.
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
