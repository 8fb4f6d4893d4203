// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/testkit"
)

func openFiles(t *testing.T, a *load.Agent) int {
	t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", a.PID()))
	testkit.Succeed(t, err)
	return len(files)
}

// awaitFiles waits until an agent has at most this many open files.
func awaitFiles(t *testing.T, a *load.Agent, most int) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() error {
		if now := openFiles(t, a); now > most {
			return fmt.Errorf("%d files are open, before %d", now, most)
		}
		return nil
	})
}

// slicesAsync runs a slice of an hour on a connection; the end arrives on the channel.
func slicesAsync(ctx context.Context, a *load.Agent, c load.Conn) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := a.Slices(ctx, []load.Slice{{Conn: c.ID, Duration: time.Hour, Lead: -1}})
		done <- err
	}()
	return done
}

// TestSliceEnds ends a slice from each side. The connection is lost, and nothing else.
func TestSliceEnds(t *testing.T) {
	for name, spec := range sliceSpecs(netip.AddrPort{}) {
		if name != spec.Workload && spec.FlowCount() == 1 {
			continue
		}
		for end, fn := range map[string]func(*testing.T, pair, load.Conn){
			"server dies": serverDies, "client dies": clientDies, "peer vanishes": peerVanishes,
			"server dies at rest": serverDiesAtRest, "client dies at rest": clientDiesAtRest,
		} {
			if end == "client dies at rest" && strings.HasPrefix(spec.Workload, "udp") {
				continue // UDP does not show it
			}
			t.Run(name+"/"+end, func(t *testing.T) {
				t.Parallel()
				p := newPair(t, "127.0.0.1")
				own := spec
				own.Stall, own.Target = 2*time.Second, p.server.Address()
				files := openFiles(t, p.server)
				fn(t, p, open(t, p.client, own))
				if strings.HasPrefix(spec.Workload, "udp") {
					files += spec.FlowCount() - 1 // flows that had not begun do not notice that their client died
				}
				if strings.HasPrefix(end, "client dies") {
					awaitFiles(t, p.server, files)
				}
			})
		}
	}
}

// checkLost checks that a connection is of no more use.
func checkLost(t *testing.T, p pair, c load.Conn) {
	t.Helper()
	_, err := p.client.Slices(t.Context(), []load.Slice{{Conn: c.ID, Duration: time.Millisecond}})
	testkit.Check(t, err != nil, "it carries load again")
	_, err = p.client.Shut(t.Context(), c.ID)
	testkit.Check(t, err != nil, "it has a measurement")
}

func serverDies(t *testing.T, p pair, c load.Conn) {
	done := slicesAsync(t.Context(), p.client, c)
	awaitTraffic(t, p)
	testkit.Succeed(t, p.server.Close())
	t.Log(awaitError(t, done))
	checkLost(t, p, c)
}

func serverDiesAtRest(t *testing.T, p pair, c load.Conn) {
	testkit.Succeed(t, p.server.Close())
	t.Log(awaitError(t, slicesAsync(t.Context(), p.client, c)))
	checkLost(t, p, c)
}

func clientDies(t *testing.T, p pair, c load.Conn) {
	done := slicesAsync(t.Context(), p.client, c)
	awaitTraffic(t, p)
	testkit.Succeed(t, p.client.Close())
	t.Log(awaitError(t, done))
}

func clientDiesAtRest(t *testing.T, p pair, _ load.Conn) {
	testkit.Succeed(t, p.client.Close())
}

// peerVanishes takes a slice of seconds: a UDP stream requests the counts at its end.
func peerVanishes(t *testing.T, p pair, c load.Conn) {
	done := make(chan error, 1)
	go func() {
		_, err := p.client.Slices(t.Context(), []load.Slice{{Conn: c.ID, Duration: 5 * time.Second, Lead: -1}})
		done <- err
	}()
	awaitTraffic(t, p)
	setLoopbackDown(t, p)
	err := awaitError(t, done)
	testkit.Check(t, errors.Is(err, unix.ETIMEDOUT), "error is %v", err)
	checkLost(t, p, c)
}

// TestCancelSlices cancels a train of short slices: the call returns, and the connections stay usable.
func TestCancelSlices(t *testing.T) {
	p := newPair(t, "127.0.0.1")
	var turns []load.Slice
	for _, workload := range load.Workloads() {
		turns = append(turns, load.Slice{Conn: open(t, p.client, p.persistent(workload)).ID, Duration: 5 * time.Millisecond})
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := p.client.Slices(ctx, slices.Repeat(turns, 40))
		done <- err
	}()
	awaitTraffic(t, p)
	cancel()
	err := awaitError(t, done)
	testkit.Check(t, errors.Is(err, context.Canceled), "error is %v", err)
	_, err = p.client.Slices(t.Context(), turns)
	testkit.Check(t, err == nil, "%v", err)
	for _, s := range turns {
		_, err := p.client.Shut(t.Context(), s.Conn)
		testkit.Check(t, err == nil, "%v", err)
	}
}

// TestManyStand keeps hundreds of connections open, gives each a turn, and shuts them: no
// file and no thread is left at either end.
func TestManyStand(t *testing.T) {
	const each, mostThreads = 20, 60
	p := localPair(t, "127.0.0.1")
	specs := sliceSpecs(p.server.Address())
	// The first connection opens what stays open.
	once := func(n int) {
		var turns []load.Slice
		for name, spec := range specs {
			count := n
			if spec.Workload == load.TCPCRR {
				count = min(n, crrSlots/2)
			}
			for range count {
				c, err := p.client.Open(t.Context(), spec)
				testkit.Require(t, err == nil, "%s: %v", name, err)
				turns = append(turns, load.Slice{Conn: c.ID, Duration: time.Millisecond})
			}
		}
		results, err := p.client.Slices(t.Context(), turns)
		testkit.Succeed(t, err)
		for _, r := range results {
			testkit.Check(t, r.Count+r.Sent != 0, "a connection carried nothing")
		}
		for _, s := range turns {
			_, err := p.client.Shut(t.Context(), s.Conn)
			testkit.Require(t, err == nil, "%v", err)
		}
	}
	once(1)
	before := map[*load.Agent]int{p.client: openFiles(t, p.client), p.server: openFiles(t, p.server)}
	once(each)
	for a, files := range before {
		awaitFiles(t, a, files)
		testkit.Eventually(t, 30*time.Second, func() error {
			if now := len(threadCPUs(t, a.PID())); now > mostThreads {
				return fmt.Errorf("%d threads", now)
			}
			return nil
		})
	}
}

// TestOpenFails opens connections that cannot be; nothing of them is left.
func TestOpenFails(t *testing.T) {
	p := localPair(t, "127.0.0.1")
	deaf, err := net.Listen("tcp4", "127.0.0.1:0")
	testkit.Succeed(t, err)
	t.Cleanup(func() { _ = deaf.Close() })
	good := p.persistent(load.TCPStream)
	good.Flows, good.Stall = 2, 300*time.Millisecond
	c := open(t, p.client, good)
	_, err = p.client.Shut(t.Context(), c.ID)
	testkit.Require(t, err == nil, "%v", err)
	files := openFiles(t, p.client)
	for name, spoil := range map[string]func(*load.Spec){
		"refused":   func(s *load.Spec) { s.Target = netip.MustParseAddrPort("127.0.0.1:1") },
		"deaf":      func(s *load.Spec) { s.Target = netip.MustParseAddrPort(deaf.Addr().String()) },
		"namespace": func(s *load.Spec) { s.Namespace = "/no/such/namespace" },
		"limit":     func(s *load.Spec) { s.Limit = 5 }, // of several flows
		"reversed":  func(s *load.Spec) { s.Workload, s.Reverse = load.UDPStream, true },
		"request":   func(s *load.Spec) { s.Request = 1<<20 + 1 },
		"response":  func(s *load.Spec) { s.Response = -1 },
		"datagram":  func(s *load.Spec) { s.Workload, s.Flows, s.Request = load.UDPRR, 1, load.MinDatagram-1 },
	} {
		spec := good
		spoil(&spec)
		c, err := p.client.Open(t.Context(), spec)
		testkit.Check(t, err != nil, "%s: opened %+v", name, c)
	}
	now := openFiles(t, p.client)
	testkit.Check(t, now == files, "%d files are open, before %d", now, files)
	for name, turns := range map[string][]load.Slice{
		"unknown": {{Conn: 99, Duration: 1}}, "no duration": {{Conn: c.ID}}, "many": make([]load.Slice, load.MaxSlices+1),
	} {
		_, err := p.client.Slices(t.Context(), turns)
		testkit.Check(t, err != nil, "%s slices run", name)
	}
	_, err = p.client.Shut(t.Context(), c.ID)
	testkit.Check(t, err != nil, "a connection is shut twice")
	slots := p.persistent(load.TCPCRR)
	for range crrSlots {
		open(t, p.client, slots)
	}
	if _, err := p.client.Open(t.Context(), slots); err == nil || !strings.Contains(err.Error(), "more than 32") {
		t.Errorf("a port has one connection too many: %v", err)
	}
}

// fewPorts leaves a pair's namespace 64 ports, which TIME_WAIT soon holds.
func fewPorts(t *testing.T) pair {
	t.Helper()
	p := newPair(t, "127.0.0.1")
	settings := map[string]string{"ip_local_port_range": "50000 50063", "tcp_tw_reuse": "0"}
	for name, value := range settings {
		if err := p.ns.Do(func() error {
			return os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value),
				0o644)
		}); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// TestPortsRunOut leaves no port.
func TestPortsRunOut(t *testing.T) {
	p := fewPorts(t)
	c := open(t, p.client, p.persistent(load.TCPCRR))
	err := awaitError(t, slicesAsync(t.Context(), p.client, c))
	testkit.Check(t, errors.Is(err, unix.EADDRNOTAVAIL) && strings.Contains(err.Error(), "tcp_tw_reuse"),
		"error is %v", err)
}

// TestResetsLeavePorts ends connections with resets: any number of them needs few ports.
func TestResetsLeavePorts(t *testing.T) {
	p := fewPorts(t)
	spec := p.persistent(load.TCPCRR)
	spec.Reset = true
	c := open(t, p.client, spec)
	turn := []load.Slice{{Conn: c.ID, Duration: 100 * time.Millisecond}}
	for count := uint64(0); count < 500; {
		results, err := p.client.Slices(t.Context(), turn)
		testkit.Succeed(t, err)
		count += results[0].Count
	}
	m, err := p.client.Shut(t.Context(), c.ID)
	testkit.Check(t, err == nil && m.Count >= 500 && !(lost(m) > 0) && m.ServerPeer == m.ClientLocal, "%+v, %v", m, err)
}

// TestSilentConnection connects to a port that serves short connections, and sends nothing for a while: the others
// go on.
func TestSilentConnection(t *testing.T) {
	p := localPair(t, "127.0.0.1")
	c := open(t, p.client, p.persistent(load.TCPCRR))
	var silent []net.Conn
	for range 3 {
		conn, err := net.Dial("tcp4", p.server.Address().String())
		testkit.Succeed(t, err)
		defer func() { _ = conn.Close() }()
		silent = append(silent, conn)
	}
	// Neither an unused slot nor an empty connection disturbs.
	for _, content := range []string{"\xff", "", "M"} {
		stranger, err := net.Dial("tcp4", p.server.Address().String())
		testkit.Succeed(t, err)
		_, err = stranger.Write([]byte(content))
		testkit.Check(t, err == nil, "%v", err)
		_ = stranger.Close()
	}
	open(t, p.client, p.persistent(load.TCPStream))
	_, err := p.client.Slices(t.Context(), []load.Slice{{Conn: c.ID, Duration: 20 * time.Millisecond}})
	testkit.Check(t, err == nil, "%v", err)
	// A request that comes late is answered all the same.
	late := []byte{crrRequest}
	_, err = silent[0].Write(late)
	testkit.Check(t, err == nil, "%v", err)
	_ = silent[0].SetReadDeadline(time.Now().Add(30 * time.Second))
	n, err := silent[0].Read(late)
	testkit.Check(t, n == 1 && late[0] == crrRequest, "a late request gets %d bytes, %x, %v", n, late, err)
	m, err := p.client.Shut(t.Context(), c.ID)
	testkit.Check(t, err == nil && m.Count != 0, "%d connections, %v", m.Count, err)
}
