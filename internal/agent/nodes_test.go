// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mustang/internal/agent/healthz"
	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/nodenet"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

const nodes = "/api/v1/nodes"

// network is a network of nodes without a kernel, and the attacher of its pods.
type network struct {
	sync.Mutex
	joined, attached string
	applied          int
	fails            bool
}

func (n *network) Apply(self nodenet.Node, others []nodenet.Node) error {
	n.Lock()
	defer n.Unlock()
	slices.SortFunc(others, func(a, b nodenet.Node) int { return cmp.Compare(a.Name, b.Name) })
	n.joined = fmt.Sprint(self, " ", others)
	n.applied++
	if n.fails {
		return errors.New("no")
	}
	return nil
}

func (n *network) MTU(nodenet.Node, []nodenet.Node) (int, error) { return 1450, nil }

func (n *network) Watch(context.Context) (<-chan struct{}, error) { return nil, nil }

func (n *network) Attach(_ context.Context, ranges []netip.Prefix, mtu int) error {
	n.Lock()
	defer n.Unlock()
	n.attached = fmt.Sprint(ranges, " ", mtu)
	return nil
}

// wants waits until the network is joined so, and pods can be attached so.
func (n *network) wants(t *testing.T, what, joined, attached string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		n.Lock()
		defer n.Unlock()
		if n.joined != joined || n.attached != attached {
			return fmt.Errorf("%s: joined %q, attached %q, want %q, %q", what, n.joined, n.attached, joined, attached)
		}
		return nil
	})
}

func nodeAt(name, address, ranges, more string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": %q}, "spec": {%s},
"status": {"addresses": [{"type": "Hostname", "address": %q}, {"type": "InternalIP", "address": %q}]%s}}`, name, ranges, name, address, more)
}

// TestNodes joins a node with others as they come, change and go, and lets pods be attached once it has ranges, also while another
// node cannot be joined.
func TestNodes(t *testing.T) {
	s := kubetest.Start(t)
	n := &network{fails: true}
	client, err := kube.Connect(s.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	rows := &table{rows: map[service.Key]service.Service{}}
	startAgent(t, New(Options{
		Node: "here", Source: client, Services: rows, Policies: applied{rows}, Access: rows, Health: checks{rows}, State: healthz.New(), Events: client, Nodes: n, Attacher: n, Status: client,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}))
	s.Put(t, nodes, nodeAt("far", "192.0.2.2", `"podCIDRs": ["10.1.2.0/24", "fd00:2::/64"]`, ""))
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", "", ""))
	n.wants(t, "no ranges", "{here [192.0.2.1] []} [{far [192.0.2.2] [10.1.2.0/24 fd00:2::/64]}]", "")
	if o := s.Object(t, nodes, "", "here"); strings.Contains(o, "NetworkUnavailable") {
		t.Errorf("pods cannot be attached, and the node has %s", o)
	}
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", `"podCIDRs": ["10.1.1.0/24"]`, `, "conditions": [{"type": "NetworkUnavailable", "status": "True"}]`))
	n.wants(t, "ranges", "{here [192.0.2.1] [10.1.1.0/24]} [{far [192.0.2.2] [10.1.2.0/24 fd00:2::/64]}]", "[10.1.1.0/24] 1450")
	testkit.Eventually(t, time.Minute, func() error {
		if o := s.Object(t, nodes, "", "here"); !strings.Contains(o, `"reason":"MustangIsUp","status":"False","type":"NetworkUnavailable"`) {
			return fmt.Errorf("the node has %s", o)
		}
		return nil
	})
	s.Put(t, nodes, nodeAt("far", "192.0.2.3", `"podCIDRs": ["10.1.2.0/24"]`, ""))
	n.wants(t, "another address", "{here [192.0.2.1] [10.1.1.0/24]} [{far [192.0.2.3] [10.1.2.0/24]}]", "[10.1.1.0/24] 1450")
	rows.Lock()
	rows.at = nil
	rows.Unlock()
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
