// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

func TestMain(m *testing.M) { os.Exit(CheckLeaks(m)) }

// recorder is a test that only notes how it would end.
type recorder struct {
	testing.TB
	skipped, failed atomic.Bool
	cleanups        []func()
}

func (r *recorder) Helper() {}

func (r *recorder) Skip(...any) { r.skipped.Store(true); runtime.Goexit() }

func (r *recorder) Fatal(...any) { r.failed.Store(true); runtime.Goexit() }

func (r *recorder) Fatalf(string, ...any) { r.failed.Store(true); runtime.Goexit() }

func (r *recorder) Error(...any) { r.failed.Store(true) }

func (r *recorder) Errorf(string, ...any) { r.failed.Store(true) }

func (r *recorder) Cleanup(fn func()) { r.cleanups = append(r.cleanups, fn) }

func (r *recorder) cleanUp() {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
}

// TestRequire checks which tests are skipped, and that the variable makes them fail.
func TestRequire(t *testing.T) {
	const runs, skipped, failed = "runs", "skipped", "failed"
	rows := []struct {
		name                string
		require             func(testing.TB)
		unset, machine, all string
	}{
		{"a tool that is there", func(t testing.TB) { RequireTool(t, "sh") }, runs, runs, runs},
		{"a tool that is not", func(t testing.TB) { RequireTool(t, "mst-no-such-tool") }, skipped, failed, failed},
		{"an old kernel", func(t testing.TB) { RequireKernel(t, 3, 10) }, runs, runs, runs},
		{"a kernel of the future", func(t testing.TB) { RequireKernel(t, 99, 0) }, skipped, failed, failed},
		{"a mode", func(t testing.TB) { RequireMode(t, nil) }, runs, runs, runs},
		{"a mode that is missing", func(t testing.TB) { RequireMode(t, fmt.Errorf("mode: %w", errors.ErrUnsupported)) },
			skipped, skipped, failed},
		{"a mode that can't be probed", func(t testing.TB) { RequireMode(t, errors.New("out of memory")) }, failed,
			failed, failed},
	}
	for _, row := range rows {
		for value, want := range map[string]string{"": row.unset, "machine": row.machine, "all": row.all} {
			t.Run(row.name+", "+value, func(t *testing.T) {
				t.Setenv(TierVariable, "")
				t.Setenv(RequireVariable, value)
				t.Setenv(SkippedVariable, "")
				var r recorder
				done := make(chan struct{})
				go func() { // which may be ended
					defer close(done)
					row.require(&r)
				}()
				<-done
				if r.skipped.Load() != (want == skipped) || r.failed.Load() != (want == failed) {
					t.Errorf("skipped: %t, failed: %t", r.skipped.Load(), r.failed.Load())
				}
			})
		}
	}
}

// TestSkippedVariable checks the list of tests that this kernel cannot run.
func TestSkippedVariable(t *testing.T) {
	list := filepath.Join(t.TempDir(), "list")
	t.Setenv(SkippedVariable, list)
	t.Setenv(TierVariable, "")
	t.Setenv(RequireVariable, "machine")
	t.Run("a mode", func(t *testing.T) { RequireMode(t, nil) })
	t.Run("half a mode", func(t *testing.T) { NeedsOther(t) })
	t.Run("no mode", func(t *testing.T) {
		r := recorder{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			RequireMode(&r, errors.ErrUnsupported)
		}()
		<-done
	})
	dir, err := os.Getwd()
	Succeed(t, err)
	want := fmt.Sprintf("%[1]s\tTestSkippedVariable/half_a_mode\n%[1]s\tTestSkippedVariable/no_mode\n", dir)
	if got, err := os.ReadFile(list); err != nil || string(got) != want {
		t.Errorf("the list is %q, %v, want %q", got, err, want)
	}
}

func TestEventually(t *testing.T) {
	calls := 0
	Eventually(t, time.Minute, func() error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if calls != 3 {
		t.Errorf("%d calls", calls)
	}
}

// TestNamespace makes two of the same hint, which are gone afterwards.
func TestNamespace(t *testing.T) {
	RequireRoot(t)
	var r recorder
	r.TB = t
	a, b := Namespace(&r, "x"), Namespace(&r, "x")
	prefix := fmt.Sprintf("%s%d-", namespacePrefix, os.Getpid())
	if a.Name() == b.Name() || !strings.HasPrefix(a.Name(), prefix) || !strings.HasSuffix(a.Name(), "-x") {
		t.Errorf("names are %q and %q", a.Name(), b.Name())
	}
	r.cleanUp()
	if names, err := netns.List(prefix); err != nil || len(names) != 0 || r.failed.Load() {
		t.Errorf("left behind: %v, %v", names, err)
	}
}

// TestClearDead removes the namespaces of dead processes, and no others.
func TestClearDead(t *testing.T) {
	RequireRoot(t)
	alive := Namespace(t, "alive")
	const dead = namespacePrefix + "999999999-1-dead" // above the highest possible id
	const ofLab = namespacePrefix + "999999999-1.host"
	for _, name := range []string{dead, ofLab} {
		ns, err := netns.Create(name)
		Succeed(t, err)
		defer ns.Close()
		t.Cleanup(func() { _ = netns.Delete(name) })
	}
	Succeed(t, clearDead())
	if names, err := netns.List(dead); err != nil || len(names) != 0 {
		t.Errorf("still there: %v, %v", names, err)
	}
	for _, name := range []string{alive.Name(), ofLab} {
		if names, err := netns.List(name); err != nil || len(names) != 1 {
			t.Errorf("%s is gone: %v, %v", name, names, err)
		}
	}
}

// TestEcho makes round trips in a namespace, and one to an unused address.
func TestEcho(t *testing.T) {
	ns := Namespace(t, "echo")
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		for network, size := range map[string]int{"tcp": 3 << 20, "udp": 9000} {
			server := Echo(t, ns, network, addr)
			peer, err := RoundTrip(t, ns, network, server.String(), make([]byte, size))
			Succeed(t, err)
			if peer.Addr() != server.Addr() || peer.Port() == server.Port() || peer.Port() == 0 {
				t.Errorf("%s: server %v sees the client as %v", network, server, peer)
			}
		}
	}
	if _, err := RoundTrip(t, ns, "tcp", "127.0.0.1:1", nil); err == nil {
		t.Error("a round trip to a closed port is no error")
	}
	if _, err := RoundTrip(t, ns, "udp", "127.0.0.1:1", []byte("x")); err == nil {
		t.Error("a datagram to a closed port is no error")
	}
}

// TestLostDatagrams loses single datagrams, which are sent again, and the first one of every client, so that none
// arrives.
func TestLostDatagrams(t *testing.T) {
	for name, lost := range map[string]func(number, ofClient int) bool{
		"the first":          func(number, _ int) bool { return number == 1 },
		"the second":         func(number, _ int) bool { return number == 2 },
		"the first of each":  func(_, ofClient int) bool { return ofClient == 1 },
		"the second of each": func(_, ofClient int) bool { return ofClient == 2 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := Namespace(t, "lost")
			_, err := RoundTrip(t, ns, "udp", lossyServer(t, ns, lost), []byte("x"))
			if always := strings.HasSuffix(name, "each"); (err != nil) != always || always &&
				!errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("error %v; all datagrams lost: %v", err, always)
			}
		})
	}
}

// lossyServer starts an echo server that loses datagrams by their number, overall and per client.
func lossyServer(t *testing.T, ns *netns.Namespace, lost func(number, ofClient int) bool) string {
	t.Helper()
	var conn net.PacketConn
	err := ns.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", "127.0.0.1:0")
		return err
	})
	Succeed(t, err)
	closeAtCleanup(t, conn)
	go func() {
		number, ofClients, buffer := 0, map[string]int{}, make([]byte, 100)
		for {
			n, client, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			number++
			ofClients[client.String()]++
			answer := buffer[:n]
			if string(answer) == whoAmI {
				answer = []byte(client.String())
			}
			if !lost(number, ofClients[client.String()]) {
				_, _ = conn.WriteTo(answer, client)
			}
		}
	}()
	return conn.LocalAddr().String()
}

// TestSnapshot takes one before and after nothing, and after a change.
func TestSnapshot(t *testing.T) {
	ns := Namespace(t, "snapshot")
	before := Snapshot(t, ns)
	for _, part := range []string{"LOOPBACK", "inet6 ::1", "net/ipv4/ip_forward="} {
		if !strings.Contains(before, part) {
			t.Errorf("it lacks %q", part)
		}
	}
	if Snapshot(t, ns) != before {
		t.Error("two of the same differ")
	}
	Succeed(t, rtnl.In(ns).SetSysctl("net/ipv4/ip_default_ttl", "33"))
	if Snapshot(t, ns) == before {
		t.Error("a changed sysctl makes no difference")
	}
}

// TestBPFFS gets a directory on a BPF file system that goes away.
func TestBPFFS(t *testing.T) {
	RequireRoot(t)
	var dir string
	t.Run("inner", func(t *testing.T) { dir = BPFFS(t) })
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s is still there", dir)
	}
	dir = BPFFS(t)
	if !isBPFFS(dir) {
		t.Errorf("%s is on no BPF file system", dir)
	}
}

func TestPing(t *testing.T) {
	ns := Namespace(t, "ping")
	for _, addr := range []string{"127.0.0.1", "::1"} {
		for _, size := range []int{0, 1, 1400, 9000} {
			if err := Ping(ns, netip.MustParseAddr(addr), size); err != nil {
				t.Error(err)
			}
		}
	}
	if err := Ping(ns, netip.MustParseAddr("192.0.2.1"), 8); err == nil {
		t.Error("an address that is nowhere answers")
	}
}
