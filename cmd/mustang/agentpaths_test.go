// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netstat"
	"mustang/internal/pathprobe"
	"mustang/internal/testkit"
)

// TestPathCheckPort has agents without and with --path-check: only the latter answers probes, at the first InternalIP.
// It answers another node, and ignores an address of no Node until a Node has it.
func TestPathCheckPort(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	n, other := c.nodes[0], c.nodes[1]
	listens := func() string {
		return fmt.Sprint(testkit.Must(netstat.Receivers(n.ns, unix.IPPROTO_UDP, pathprobe.DefaultPort))(t))
	}
	n.start("native")
	n.written()
	testkit.Check(t, listens() == "[]", "without --path-check: a socket at %s", listens())
	n.kill()
	n.launch("--cni-socket=none", "--routing=off", "--cni-conf-dir=", "--path-check=1m")
	testkit.Eventually(t, time.Minute, func() error {
		if have := listens(); have != "[{192.0.2.1 false}]" {
			return errors.New("with --path-check: " + have)
		}
		return nil
	})
	probe := func(from string) (pathprobe.Path, error) {
		return pathprobe.ProbeMTU(t.Context(), pathprobe.Options{Host: other.ns,
			At: netip.AddrPortFrom(n.addresses[0].Addr(), pathprobe.DefaultPort), From: netip.MustParseAddr(from)})
	}
	path, err := probe("192.0.2.2")
	testkit.Check(t, err == nil && path.MTU == 1500 && path.Least() == 1500, "a node: %+v, %v", path, err)
	other.ip("-n " + other.ns.Name() + " addr add 192.0.2.9/24 dev eth0")
	path, err = probe("192.0.2.9")
	testkit.Check(t, errors.Is(err, pathprobe.ErrNoAnswer) && !errors.Is(err, unix.ECONNREFUSED),
		"an address of no Node: %+v, %v", path, err)
	c.api.Put(t, nodeList, `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node9"},
"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]}}`)
	testkit.Eventually(t, time.Minute, func() error { _, err := probe("192.0.2.9"); return err })
}
