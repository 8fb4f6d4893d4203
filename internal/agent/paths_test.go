// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/agent/status"
	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/netns"
	"mustang/internal/pathprobe"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// pathNodes are two nodes with agents that check the path between them: here and there, at 192.0.2.1 and 192.0.2.2.
// Their devices have an MTU of 1500. A bridge with the devices port0 and port1 joins them.
type pathNodes struct {
	*testing.T
	api    *kubetest.Server
	wire   *netns.Namespace
	hosts  []*netns.Namespace
	agents []*Agent
}

func newPathNodes(t *testing.T, every time.Duration) (n pathNodes) {
	n = pathNodes{T: t, api: kubetest.Start(t), wire: testkit.Namespace(t, "wire")}
	testkit.Command(t, n.wire, "ip link add br0 up type bridge")
	for i, name := range []string{"here", "there"} {
		host, port, address := testkit.Namespace(t, name), fmt.Sprint("port", i), fmt.Sprint("192.0.2.", i+1)
		testkit.Succeed(t, rtnl.AddVeth(rtnl.VethEnd{Namespace: host, Name: "eth0"},
			rtnl.VethEnd{Namespace: n.wire, Name: port}, 1500))
		testkit.Command(t, n.wire, "ip link set "+port+" master br0")
		testkit.Succeed(t, rtnl.In(host).Configure("eth0",
			rtnl.DeviceConfig{Addresses: []netip.Prefix{netip.MustParsePrefix(address + "/24")}, Up: true}))
		n.api.Put(t, nodes, nodeAt(name, address, "", ""))
		n.hosts = append(n.hosts, host)
		n.agents = append(n.agents, start(t, n.api, newTable(), func(o *Options) {
			o.Node, o.Paths = name, Paths{Host: host, Every: every}
		}))
	}
	return n
}

// has waits until an agent's metrics contain lines, or do not, and its report has these paths: node and finding.
func (n pathNodes) has(what string, of *Agent, lines map[string]bool, paths ...string) {
	n.Helper()
	testkit.Eventually(n.T, 2*time.Minute, func() error {
		metrics := ask(of.State.Metrics(), "/metrics").Body.String()
		for line, want := range lines {
			if strings.Contains(metrics, "\n"+line+"\n") != want {
				return fmt.Errorf("%s: metric %q in %s", what, line, metrics)
			}
		}
		report, err := of.Report(n.Context(), status.Query{})
		if err != nil {
			return err
		}
		var have []string
		for _, p := range report.Paths {
			have = append(have, p.Node, strings.ReplaceAll(p.Finding, "1400", "1396")) // 4 bytes more for a VLAN tag
		}
		var text bytes.Buffer
		err = status.WriteText(&text, report, status.Query{})
		if !slices.Equal(have, paths) || strings.Contains(text.String(), "SINCE") != (len(paths) > 0) {
			return errors.Join(err, fmt.Errorf("%s: paths %q in %s", what, have, &text))
		}
		return err
	})
}

const noFaults, oneFault = "mustang_path_faults 0", "mustang_path_faults 1"

func never(result string) string {
	return fmt.Sprintf("mustang_path_checks_total{result=%q} 0", result)
}

// TestPathCheck drops large packets between two nodes, then all. Metrics, an event and the report of both agents name
// the fault, until it is repaired.
func TestPathCheck(t *testing.T) {
	testkit.RequireRoot(t)
	n := newPathNodes(t, 50*time.Millisecond)
	for _, a := range n.agents {
		n.has("a good path", a, map[string]bool{noFaults: true, never("mtu"): true, never("ok"): false})
	}
	const small = " is 1396, eth0 has 1500: packets above 1396 bytes are lost"
	names := []string{"there (192.0.2.2)", "here (192.0.2.1)"}
	mtu := func(bytes int) {
		for i := range n.hosts {
			testkit.Command(t, n.wire, fmt.Sprintf("ip link set port%d mtu %d", i, bytes))
		}
	}
	mtu(1396) // some kernels forward 1400
	for i, a := range n.agents {
		node, _, _ := strings.Cut(names[i], " ")
		n.has("a small MTU", a, map[string]bool{oneFault: true, never("mtu"): false}, node, "path MTU to "+names[i]+small)
	}
	wantsEvents(t, n.api, map[string]int{" bytes are lost": 2})
	mtu(1500)
	for _, a := range n.agents {
		n.has("repaired", a, map[string]bool{noFaults: true, never("checksum"): true})
	}
	testkit.Command(t, n.wire, "ip link set port1 nomaster")
	const silent = "there: no answer from 192.0.2.2:7178 by UDP within 5s"
	n.has("no packet passes", n.agents[0], map[string]bool{oneFault: true, never("unreachable"): false}, "there", silent)
	testkit.Command(t, n.wire, "ip link set port1 master br0")
	n.has("repaired again", n.agents[0], map[string]bool{noFaults: true})
	wantsEvents(t, n.api, map[string]int{silent: 1, `"reason":"PathMTU"`: 2, `"reason":"PathChecksums"`: 0})
}

// TestWrongChecksums sends UDP packets with a wrong checksum to a node. An event names them, and the next check finds
// none. Then the other Node becomes an address where no agent listens: this is no fault.
func TestWrongChecksums(t *testing.T) {
	testkit.RequireRoot(t)
	n := newPathNodes(t, 50*time.Millisecond)
	here := n.agents[0]
	n.has("a good path", here, map[string]bool{noFaults: true, never("checksum"): true, never("ok"): false})
	packet := make([]byte, 32)
	packet[0], packet[8], packet[9] = 0x45, 64, unix.IPPROTO_UDP
	copy(packet[16:], []byte{192, 0, 2, 1, 0, 9, 0, 9, 0, 12, 0xde, 0xad})
	testkit.Succeed(t, n.hosts[1].Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for range 4 * leastWrong {
			err = errors.Join(err, unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: [4]byte{192, 0, 2, 1}}))
		}
		return err
	}))
	n.has("wrong checksums", here, map[string]bool{noFaults: true, never("checksum"): false})
	wantsEvents(t, n.api, map[string]int{" packets arrived with a wrong TCP or UDP checksum: ": 1})
	testkit.Command(t, n.wire, "ip addr add 192.0.2.9/24 dev br0")
	n.api.Put(t, nodes, nodeAt("there", "192.0.2.9", "", ""))
	n.has("no agent", here, map[string]bool{noFaults: true, never("unreachable"): true, never("no_agent"): false})
}

// TestPathMoved gives a node another address long before its next check. It answers there soon.
func TestPathMoved(t *testing.T) {
	testkit.RequireRoot(t)
	n := newPathNodes(t, time.Hour)
	for _, address := range []string{"192.0.2.1", "192.0.2.9"} {
		testkit.Command(t, n.hosts[0], "ip addr replace "+address+"/24 dev eth0")
		n.api.Put(t, nodes, nodeAt("here", address, "", ""))
		testkit.Eventually(t, time.Minute, func() error {
			_, err := pathprobe.ProbeMTU(t.Context(), pathprobe.Options{Host: n.hosts[1],
				At: netip.AddrPortFrom(netip.MustParseAddr(address), pathprobe.DefaultPort)})
			return err
		})
	}
}

// TestNextPath checks each other node once before any again. Every second check is of a node with a fault.
func TestNextPath(t *testing.T) {
	of := map[string]kube.Node{"here": {}, "a": {}, "b": {}, "c": {}}
	p := paths{faults: map[string]pathFault{}, count: func(string, int) {}}
	take := func(n int) (nodes []string) {
		for range n {
			nodes = append(nodes, p.next(of, "here"))
		}
		return nodes
	}
	for range 3 {
		round := take(3)
		slices.Sort(round)
		testkit.Check(t, fmt.Sprint(round) == "[a b c]", "a round is %s", round)
	}
	for _, node := range []string{"here", "b", "c"} {
		isNew := p.note(node, status.PathSmallMTU, "small") && !p.note(node, status.PathSmallMTU, "smaller")
		testkit.Check(t, isNew, "the fault of %s is not new once", node)
	}
	if p.faulty {
		take(1)
	}
	faulty, all := map[string]bool{}, map[string]bool{}
	for range 300 {
		nodes := take(2)
		faulty[nodes[0]], all[nodes[1]] = true, true
		p.note(nodes[0], status.PathNoAgent, "")
	}
	testkit.Check(t, fmt.Sprint(faulty, all, len(p.list())) == "map[b:true c:true] map[a:true b:true c:true] 3",
		"first %v, then %v; faults %v", faulty, all, p.list())
	p.note("a", status.PathUnreachable, "silent")
	p.note("a", status.PathNoAgent, "")
	testkit.Check(t, len(p.list()) == 3, "a node that refuses the port answers, and is unreachable: %v", p.list())
	delete(of, "b")
	delete(of, "a")
	nodes := take(4)
	testkit.Check(t, fmt.Sprint(nodes) == "[c c c c]", "one other node is left: %s", nodes)
	p.note("c", status.PathOK, "")
	delete(of, "c")
	nodes = take(2)
	testkit.Check(t, fmt.Sprintf("%q", nodes) == `["" ""]` && len(p.list()) == 1, "alone: %q, %v", nodes, p.list())
}
