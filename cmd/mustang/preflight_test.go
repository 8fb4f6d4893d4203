// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/kube/kubetest"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

type preflightCheck struct{ Check, Result, Found, Do string }

// preflight runs mustang agent preflight in a namespace, and returns the checks with a result other than ok, by name.
func preflight(t *testing.T, node *netns.Namespace, args ...string) (code int, bad map[string]preflightCheck) {
	t.Helper()
	args = append([]string{"agent", "preflight", "--netns", node.Path(), "--run-dir", t.TempDir()}, args...)
	if !slices.Contains(args, "--cni-conf-dir") {
		args = append(args, "--cni-conf-dir", filepath.Join(t.TempDir(), "none"))
	}
	code, stdout, stderr := command(t, nil, append(args, "-o", "json")...)
	var all struct{ Checks []preflightCheck }
	err := json.Unmarshal([]byte(stdout), &all)
	testkit.Require(t, err == nil && len(all.Checks) >= 15, "%v: %s: %s", err, stdout, stderr)
	bad = map[string]preflightCheck{}
	fails := 0
	for _, c := range all.Checks {
		if c.Result == "fail" {
			fails++
		}
		if c.Result != "ok" && c.Result != "info" {
			bad[c.Check] = c
		}
	}
	testkit.Check(t, (code == exitDone) == (fails == 0) && code != exitMisuse, "exit code %d, %d checks fail", code, fails)
	return code, bad
}

// names fails the test unless exactly the checks in want are not ok, with the result and the words that follow it.
func names(t *testing.T, bad map[string]preflightCheck, want map[string][]string) {
	t.Helper()
	for check, words := range want {
		have := bad[check]
		testkit.Check(t, have.Result == words[0], "%s: %+v, want %s", check, have, words)
		for _, word := range words[1:] {
			testkit.Check(t, strings.Contains(have.Found, word), "%s: %q lacks %q", check, have.Found, word)
		}
		delete(bad, check)
	}
	testkit.Check(t, len(bad) == 0, "other checks are not ok: %+v", bad)
}

// preflightListen runs the listening end in a namespace, until the test ends it.
func preflightListen(t *testing.T, node *netns.Namespace, at netip.Addr) {
	t.Helper()
	var out output
	cmd := exec.Command("mustang", "agent", "preflight", "--netns", node.Path(), "--listen", at.String())
	cmd.Stdout, cmd.Stderr = &out, &out
	testkit.Succeed(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGINT)
		err := cmd.Wait()
		testkit.Check(t, err == nil, "the listening end: %v: %s", err, out.String())
	})
	testkit.Eventually(t, time.Minute, func() error {
		if !strings.Contains(out.String(), fmt.Sprintf("listening at %v", netip.AddrPortFrom(at, 7178))) {
			return errors.New(out.String())
		}
		return nil
	})
}

// TestPreflightPaths names a small path MTU and a broken checksum offload, and nothing on a good wire. It leaves the
// node unchanged.
func TestPreflightPaths(t *testing.T) {
	testkit.RequireRoot(t)
	const path, path6, checksums = "path to 192.0.2.2", "path to 2001:db8::2", "checksums to 192.0.2.2"
	there := []string{"fail", "packets reached 192.0.2.2 with a wrong checksum"}
	back := []string{"fail", "packets from 192.0.2.2 arrived with a wrong checksum"}
	for name, c := range map[string]struct {
		v6    bool
		edits []frameEdit
		want  map[string][]string
	}{
		"good":       {},
		"good, IPv6": {v6: true},
		"small MTU": {edits: []frameEdit{dropLarger(1400, -1)}, want: map[string][]string{
			path: {"fail", "path MTU to 192.0.2.2 is 1400, eth0 has 1500: packets above 1400 bytes are lost"}}},
		"small MTU, IPv6": {v6: true, edits: []frameEdit{dropLarger(1400, -1)}, want: map[string][]string{
			path6: {"fail", "path MTU to 2001:db8::2 is 1400, eth0 has 1500: packets above 1400 bytes are lost"}}},
		"checksums of all": {edits: []frameEdit{spoilChecksums(0, 0, true)}, want: map[string][]string{checksums: there}},
		"checksums of full": {edits: []frameEdit{spoilChecksums(0, 1300, false)},
			want: map[string][]string{checksums: there}},
		"both on return": {edits: []frameEdit{dropLarger(1400, 1), spoilChecksums(1, 1300, true)}, want: map[string][]string{
			path: {"fail", "path MTU from 192.0.2.2 is 1400"}, checksums: back}},
		"random loss": {edits: []frameEdit{dropProbes(func(n int) bool { return n%5 == 0 })},
			want: map[string][]string{"loss to 192.0.2.2": {"warn", "of 60 probes were lost"}}},
		"silence": {edits: []frameEdit{dropProbes(func(n int) bool { return n > 2 })}, want: map[string][]string{
			path: {"fail", "192.0.2.2:7178 answered first, then none of 60 probes: "}}},
		"no tunnel": {edits: []frameEdit{dropTunnel}, want: map[string][]string{"VXLAN to 192.0.2.2": {"fail", "stalls"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, c.v6, c.edits...)
			preflightListen(t, w.nodes[1], w.addresses[1])
			var before string
			testkit.Eventually(t, time.Minute, func() error {
				if before = testkit.Snapshot(t, w.nodes[0]); strings.Contains(before, "tentative") {
					return errors.New("an address is tentative")
				}
				return nil
			})
			_, bad := preflight(t, w.nodes[0], "--peer", w.addresses[1].String())
			names(t, bad, c.want)
			after := testkit.Snapshot(t, w.nodes[0])
			testkit.Check(t, after == before, "preflight has changed the node: %s, before %s", after, before)
		})
	}
}

// TestPreflightOffload probes a veth pair with all offloads, over IPv4 and IPv6. It names a peer where nobody listens,
// and a second probe on a node.
func TestPreflightOffload(t *testing.T) {
	for _, address := range []string{"10.0.0.2", "fd00:1::2"} {
		a, b := testkit.VethPair(t)
		_, bad := preflight(t, a, "--peer", address)
		name := "path to " + address
		testkit.Check(t, strings.Contains(bad[name].Do, "mustang agent preflight --listen"), "nobody listens: %+v", bad)
		names(t, bad, map[string][]string{name: {"fail", "no answer from"}})
		preflightListen(t, b, netip.MustParseAddr(address))
		_, bad = preflight(t, a, "--peer", address, "--peer", address)
		names(t, bad, nil)
		second := netip.AddrPortFrom(netip.MustParseAddr(address), 7179).String()
		code, _, stderr := command(t, nil, "agent", "preflight", "--netns", b.Path(), "--listen", second)
		testkit.Check(t, code == exitFailed && strings.Contains(stderr, "another preflight runs on this node"),
			"a second one: %d, %q", code, stderr)
	}
}

// TestPreflightNode names what keeps an agent from serving a node.
func TestPreflightNode(t *testing.T) {
	for _, tool := range []string{"ip", "nft", "sysctl"} {
		testkit.RequireTool(t, tool)
	}
	node, other := testkit.VethPair(t)
	run := func(line string) { testkit.Command(t, node, line) }
	_, bad := preflight(t, node)
	names(t, bad, nil)

	run("ip addr del 10.0.0.1/24 dev left")
	run("ip link set left mtu 1340")
	_, bad = preflight(t, node)
	names(t, bad, map[string][]string{"MTU of left": {"fail", "1340: IPv6 in VXLAN needs 1350"}})
	run("ip link set left mtu 1350")
	_, bad = preflight(t, node)
	names(t, bad, map[string][]string{"MTU of left": {"warn", "1350: IPv6 in WireGuard needs 1360"}})
	run("ip addr add 10.0.0.1/24 dev left")
	run("ip route add default via 10.0.0.2")
	run("ip link set left mtu 1300")
	run("sysctl -q net.ipv4.conf.left.rp_filter=1")
	run("ip link add cni0 type bridge")
	run("ip link add flannel.1 type vxlan id 1 dstport 8472 local 10.0.0.1 dev left")
	run("nft add table ip kube-proxy")
	run("nft add chain ip kube-proxy services")
	run("nft add table ip nat")
	run("nft add chain ip nat KUBE-SERVICES")
	run("nft add table ip filter")
	run("nft add chain ip filter FORWARD { type filter hook forward priority 0 ; policy drop ; }")
	var sockets []io.Closer
	testkit.Succeed(t, node.Do(func() error {
		health, err := net.Listen("tcp", ":10256")
		tunnel, udpErr := net.ListenPacket("udp", "10.0.0.1:4789")
		wireGuard, wireGuardErr := net.ListenPacket("udp", "10.0.0.1:51871")
		sockets = []io.Closer{health, tunnel, wireGuard}
		return errors.Join(err, udpErr, wireGuardErr)
	}))
	dir := t.TempDir()
	testkit.Succeed(t, os.WriteFile(filepath.Join(dir, "05-cilium.conflist"), nil, 0o600))
	_, bad = preflight(t, node, "--cni-conf-dir", dir)
	want := map[string][]string{
		"TCP port 10256": {"fail", "a program listens at"}, "UDP port 4789": {"fail", "a program has it, at 10.0.0.1"},
		"kube-proxy's rules": {"warn", "table ip kube-proxy", "chain ip nat KUBE-SERVICES"},
		"CNI configuration":  {"fail", "05-cilium.conflist"}, "devices of CNI plugins": {"warn", "cni0, flannel.1"},
		"forwarded packets": {"warn", "chain ip filter FORWARD"}, "rp_filter": {"warn", "strict at left"},
		"MTU of left": {"fail", "1300: IPv6 in VXLAN needs 1330"}, "WireGuard": {"warn", "a program has UDP port 51871"},
	}
	names(t, bad, want)
	code, stdout, stderr := command(t, nil, "agent", "preflight", "--netns", node.Path(), "--cni-conf-dir", dir)
	testkit.Check(t, code == exitFailed && strings.Contains(stdout, "\nWireGuard: a program has") && stderr ==
		"mustang: 4 checks fail: TCP port 10256, UDP port 4789, CNI configuration, MTU of left\n", "%d, %s, %s", code, stdout,
		stderr)
	table, _, _ := strings.Cut(stdout, "\n\n")
	for line := range strings.Lines(table) {
		testkit.Check(t, len(line) <= 80, "a line of the table has more than 80 columns: %s", line)
	}
	for _, s := range sockets {
		_ = s.Close()
	}
	delete(want, "TCP port 10256")
	delete(want, "CNI configuration")
	delete(want, "WireGuard")

	for kind, result := range map[string]string{"id 4096 local 10.0.0.1 dev left": "warn", "external": "fail"} {
		run("ip link add other type vxlan dstport 4789 " + kind)
		_, bad = preflight(t, node)
		want["UDP port 4789"] = []string{result, "device other"}
		names(t, bad, want)
		if result == "fail" {
			run("ip link set other up")
			code, _, stderr := command(t, nil, "agent", "preflight", "--netns", node.Path(), "--listen", "10.0.0.1")
			testkit.Check(t, code == exitFailed && strings.Contains(stderr, "another program uses UDP port 4789 exclusively"),
				"a device that does not share: %d, %q", code, stderr)
		}
		run("ip link del other")
	}
	code, stdout, stderr = command(t, nil, "agent", "preflight", "--netns", other.Path(), "--listen", "10.0.0.9")
	testkit.Check(t, code == exitFailed && stdout == "" && strings.Contains(stderr, "no device of this node has the"),
		"an address of nobody: %d, %q, %q", code, stdout, stderr)
}

// TestPreflightCluster checks a cluster without nodes, and one with kube-proxy and a node without a range.
func TestPreflightCluster(t *testing.T) {
	node, _ := testkit.VethPair(t)
	api := kubetest.Start(t)
	testkit.Succeed(t, rtnl.In(node).Configure("left", rtnl.DeviceConfig{Up: true}))
	config := api.Kubeconfig(t)
	_, bad := preflight(t, node, "--kubeconfig", config)
	names(t, bad, map[string][]string{"ranges of pods": {"warn", "the cluster lacks nodes"}})
	api.Put(t, nodeList, `{"metadata": {"name": "one"}, "spec": {"podCIDRs": ["10.1.1.0/24", "fd00:1:1::/64"]}}`)
	api.Put(t, nodeList, `{"metadata": {"name": "two"}}`)
	for _, name := range []string{"kube-proxy", "calico-node", "logs"} {
		api.Put(t, "/apis/apps/v1/daemonsets", fmt.Sprintf(`{"metadata": {"namespace": "kube-system", "name": %q}}`, name))
	}
	_, bad = preflight(t, node, "--kubeconfig", config)
	names(t, bad, map[string][]string{
		"ranges of pods": {"fail", "two"}, "kube-proxy's DaemonSet": {"fail"},
		"other networks": {"warn", "kube-system/calico-node"},
	})
	api.Stop()
	_, bad = preflight(t, node, "--kubeconfig", config)
	names(t, bad, map[string][]string{"cluster": {"fail", "connection refused"}})
}

// TestAgentStatusWaits waits for an agent in vain, and then until it has installed everything.
func TestAgentStatusWaits(t *testing.T) {
	c := newCluster(t)
	n := c.nodes[0]
	status := func(wait string) (int, string, string) {
		return command(t, nil, "agent", "status", "--run-dir", n.dir+"/agent", "--wait", wait)
	}
	code, stdout, stderr := status("1s")
	testkit.Check(t, code == exitFailed && stdout == "" && strings.HasPrefix(stderr,
		"mustang: not installed after 1s: no agent answers"), "no agent: %d, %q, %q", code, stdout, stderr)

	c.api.Delete(nodeList, "", "node1")
	n.start("native")
	testkit.Eventually(t, time.Minute, func() error {
		code, stdout, stderr = status("1s")
		if code != exitFailed || !strings.Contains(stdout, "node node1") ||
			!strings.HasPrefix(stderr, "mustang: not installed after 1s: ") {
			return fmt.Errorf("no Node object: %d, %q, %q", code, stdout, stderr)
		}
		return nil
	})
	late := make(chan struct{})
	go func() {
		defer close(late)
		code, stdout, stderr = status("2m")
	}()
	n.setAddress(1)
	<-late
	testkit.Check(t, code == exitDone && stderr == "" && strings.Contains(stdout, "service"),
		"installed: %d, %q, %q", code, stdout, stderr)
}
