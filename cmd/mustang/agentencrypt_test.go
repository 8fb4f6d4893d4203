// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mustang/internal/cni"
	"mustang/internal/kube/kubetest"
	"mustang/internal/nodenet"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// encrypted starts an agent with --encrypt=on or off.
func (n *agentNode) encrypted(value string) {
	n.t.Helper()
	n.launch("--cni-socket=none", "--encrypt", value, "--link=veth", "--services=off", "--uplink=none", "--cni-conf-dir",
		n.dir+"/conf")
}

// attachHere is attach without the plugin's program: a guest is too slow to build it.
func (n *agentNode) attachHere() {
	n.t.Helper()
	config := n.written()
	n.pod = testkit.Namespace(n.t, fmt.Sprint("pod", n.number))
	plugin := cni.Plugin{StateDir: n.dir + "/state", RunDir: n.dir + "/run", BPFRoot: n.root, Stderr: os.Stderr}
	testkit.Eventually(n.t, time.Minute, func() error { // as a kubelet: the agent has locks while it attaches programs
		return n.ns.Do(func() error {
			result, err := plugin.Add(n.t.Context(), cni.Request{ContainerID: "pod", IfName: "eth0", Netns: n.pod.Path(),
				Config: config})
			if err == nil {
				n.attached(result)
			}
			return err
		})
	})
}

// plain counts packets that come in by the uplinks of nodes, and have an address of a pod; sealed counts packets of
// WireGuard.
type plain struct{ seen, sealed atomic.Int64 }

func (c *cluster) watchPlain() *plain {
	c.t.Helper()
	w := &plain{}
	for _, n := range c.nodes {
		uplink := testkit.Must(rtnl.In(n.ns).Device("eth0"))(c.t)
		testkit.WatchPackets(c.t, n.ns, uplink.Index, func(frame []byte) {
			switch kind := binary.BigEndian.Uint16(frame[12:]); {
			case kind == 0x0800 && (frame[26] == 10 && frame[27] == 1 || frame[30] == 10 && frame[31] == 1),
				kind == 0x86dd && (frame[22] == 0xfd || frame[38] == 0xfd):
				w.seen.Add(1)
			case kind == 0x0800 && frame[23] == 17 && binary.BigEndian.Uint16(frame[36:]) == nodenet.WireGuardPort:
				w.sealed.Add(1)
			}
		})
	}
	return w
}

func (w *plain) check(t *testing.T, what string) {
	t.Helper()
	seen, sealed := w.seen.Load(), w.sealed.Load()
	testkit.Check(t, seen == 0 && sealed > 0, "%s: %d packets of pods in plain text, %d of WireGuard", what, seen, sealed)
}

// stream sends datagrams, one after the answer to the last one, until stop is called. That returns how many it sent,
// and an error if one got no answer.
func (c *cluster) stream() (stop func() (int, error)) {
	c.t.Helper()
	a, b := c.nodes[0], c.nodes[1]
	server := testkit.Echo(c.t, b.pod, "udp", netip.AddrPortFrom(b.pods[0], 0).String()).String()
	conn := testkit.Must(testkit.Dial(a.pod, "udp", server))(c.t)
	ctx, cancel := context.WithCancel(c.t.Context())
	ended := make(chan error)
	sent := 0
	go func() {
		defer conn.Close()
		buffer := make([]byte, 64)
		for ; ctx.Err() == nil; sent++ {
			_, err := fmt.Fprint(conn, sent)
			if err == nil {
				_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
				_, err = conn.Read(buffer)
			}
			if err != nil {
				ended <- fmt.Errorf("datagram %d: %w", sent, err)
				return
			}
		}
		ended <- nil
	}()
	return func() (int, error) { cancel(); return sent, <-ended }
}

// replaceKey removes the key of a node while its agent is away, and waits until the next one has published another. It
// logs for how long the other node's pod gets no answer.
func (n *agentNode) replaceKey() {
	n.t.Helper()
	a, b := n.cluster.nodes[0], n.cluster.nodes[1]
	server := testkit.Echo(n.t, a.pod, "udp", netip.AddrPortFrom(a.pods[0], 0).String()).String()
	conn := testkit.Must(testkit.Dial(b.pod, "udp", server))(n.t)
	defer conn.Close()
	path := filepath.Join(n.dir, "agent", nodenet.KeyFile)
	info := testkit.Must(os.Stat(path))(n.t)
	testkit.Check(n.t, info.Mode() == 0o600, "mode %v", info.Mode())
	before := n.api.Object(nodeList, "", "node1")
	n.kill()
	n.must(os.Remove(path))
	n.encrypted("on")
	last, longest, published := time.Now(), time.Duration(0), false
	testkit.Eventually(n.t, time.Minute, func() error {
		_, _ = conn.Write([]byte("x"))
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 8)); err != nil {
			return fmt.Errorf("published: %t; %w", published, err)
		}
		now := time.Now()
		last, longest = now, max(longest, now.Sub(last))
		if !published {
			published = n.api.Object(nodeList, "", "node1") != before
			return errors.New("the key is not replaced yet")
		}
		return nil
	})
	n.t.Logf("without an answer for %s while a key was replaced", longest)
}

func (n *agentNode) status() string {
	n.t.Helper()
	out, _ := exec.Command("mustang", "agent", "status", "node", "--run-dir", n.dir+"/agent").CombinedOutput()
	return string(out)
}

// TestAgentEncrypts has two nodes with --encrypt=on, or names the missing feature of this kernel. Nothing between pods
// is on the wire in plain text: at first, while agents are killed, after a key was replaced, while a node lacks one.
func TestAgentEncrypts(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	if err := nodenet.ProbeWireGuard(); err != nil {
		code, stdout, stderr := command(t, nil, "agent", "--node=n", "--encrypt=on", "--kubeconfig", kubetest.Start(t).
			Kubeconfig(t), "--run-dir", t.TempDir(), "--cgroup=none", "--cni-socket="+filepath.Join(t.TempDir(), "cni.sock"))
		testkit.Check(t, code == exitFailed && stdout == "" && stderr == "mustang: --encrypt=on: "+err.Error()+"\n",
			"code %d: %s%s", code, stdout, stderr)
		testkit.RequireMode(t, err)
	}
	c := newCluster(t)
	wire := c.watchPlain()
	a, b := c.nodes[0], c.nodes[1]
	for _, n := range c.nodes {
		n.encrypted("on")
		n.attachHere()
	}
	c.joined("first")
	wire.check(t, "first")
	mtu := testkit.Must(rtnl.In(a.pod).Device("eth0"))(t).MTU
	testkit.Check(t, mtu == 1500-60, "pods have MTU %d", mtu)

	stop := c.stream()
	a.kill()
	a.encrypted("on")
	b.kill()
	b.encrypted("on")
	for _, n := range c.nodes {
		testkit.Eventually(t, time.Minute, func() error {
			if s := n.status(); !strings.Contains(s, "wireguard via 192.0.2.") || strings.Contains(s, "not installed") {
				return errors.New(s)
			}
			return nil
		})
	}
	sent, err := stop()
	testkit.Check(t, err == nil && sent > 0, "while agents were killed, of %d datagrams: %v", sent, err)
	wire.check(t, "killed agents")

	a.replaceKey()
	c.joined("another key")
	wire.check(t, "another key")

	c.withoutKey(wire)
	c.api.Delete(nodeList, "", "node2")
	testkit.Eventually(t, time.Minute, func() error {
		if routes := a.routes(); strings.Contains(routes, "10.1.2.") || strings.Contains(routes, "fd00:1:2:") {
			return errors.New("the node is gone, and there is " + routes)
		}
		return nil
	})
	for _, n := range c.nodes {
		n.kill()
		cmd := exec.Command("mustang", "agent", "cleanup", "--netns", n.ns.Path(), "--run-dir", n.dir+"/agent")
		cmd.Env = n.env()
		out, err := cmd.CombinedOutput()
		testkit.Check(t, err == nil && len(out) == 0, "cleanup: %v: %s", err, out)
		links := n.ip("-n " + n.ns.Name() + " -o link")
		_, err = os.Stat(filepath.Join(n.dir, "agent", nodenet.KeyFile))
		testkit.Check(t, n.routes() == "" && !strings.Contains(links, nodenet.WireGuardName) && !n.masquerades() &&
			errors.Is(err, os.ErrNotExist), "after cleanup there is %s%s, or the key: %v", n.routes(), links, err)
	}
}

// withoutKey switches encryption off at a node. The other one sends it nothing in plain text, and names it in its
// status and an event. Switched on again, pods reach each other.
func (c *cluster) withoutKey(wire *plain) {
	c.t.Helper()
	a, b := c.nodes[0], c.nodes[1]
	const why = "its agent has not published a WireGuard key"
	b.kill()
	b.encrypted("off")
	testkit.Eventually(c.t, time.Minute, func() error {
		events := c.api.Objects("/api/v1/events")
		if s := a.status(); !strings.Contains(s, why) || !strings.Contains(events, why) {
			return fmt.Errorf("status %s, events %s", s, events)
		}
		return nil
	})
	server := testkit.Echo(c.t, b.pod, "tcp", netip.AddrPortFrom(b.pods[0], 0).String())
	from := &kubePod{Namespace: a.pod}
	before := wire.seen.Load()
	testkit.Eventually(c.t, time.Minute, func() error { // the status can be ahead of the routes
		conn, err := testkit.Dial(a.ns, "udp", server.String())
		if err == nil {
			return errors.Join(errors.New("the node itself has a route to it"), conn.Close())
		}
		return nil
	})
	testkit.Check(c.t, !from.connects(server), "a node without a key is reached")
	testkit.Check(c.t, wire.seen.Load() == before, "packets in plain text")
	b.kill()
	b.encrypted("on")
	c.joined("on again")
	wire.seen.Store(0)
}
