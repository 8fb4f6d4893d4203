// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/cgroup"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// testCgroup creates a threaded cgroup below that of the test, so that single threads can join it.
func testCgroup(t testing.TB) string {
	t.Helper()
	testkit.RequireRoot(t)
	if err := objects.ProbeSocket(); err != nil {
		testkit.Skip(t, err.Error())
	}
	for i := 1; ; i++ {
		path := fmt.Sprintf("%s/mst-test-%d-%d", ownCgroup(t), os.Getpid(), i)
		err := os.Mkdir(path, 0o700)
		if os.IsExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			testkit.Eventually(t, 10*time.Second, func() error {
				if err := unix.Rmdir(path); err != nil && err != unix.ENOENT {
					return err
				}
				return nil
			})
		})
		threaded(t, path)
		return path
	}
}

// threaded makes a cgroup threaded.
func threaded(t testing.TB, path string) {
	t.Helper()
	succeed(t, os.WriteFile(filepath.Join(path, "cgroup.type"), []byte("threaded"), 0))
}

// ownCgroup returns the path of the test's cgroup.
func ownCgroup(t testing.TB) string {
	t.Helper()
	root := must(cgroup.Root())(t)
	text := must(os.ReadFile("/proc/self/cgroup"))(t)
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return filepath.Join(root, path)
		}
	}
	t.Fatalf("no cgroup in %q", text)
	return ""
}

// place is the namespace and the cgroup in which a client runs.
type place struct {
	ns     *netns.Namespace
	cgroup string // the test's own if empty
}

// do runs fn on a thread in the place. Sockets that fn opens belong to the place for good.
func (p place) do(t testing.TB, fn func() error) error {
	t.Helper()
	own := ownCgroup(t)
	return p.ns.Do(func() (err error) {
		if p.cgroup == "" {
			return fn()
		}
		if err := joinCgroup(p.cgroup); err != nil {
			return err
		}
		defer func() {
			if back := joinCgroup(own); err == nil {
				err = back
			}
		}()
		return fn()
	})
}

// joinCgroup moves the calling thread to a threaded cgroup.
func joinCgroup(path string) error {
	return os.WriteFile(filepath.Join(path, "cgroup.threads"), []byte("0"), 0)
}

// counter is a UDP server that does not reply; received returns its datagrams.
type counter struct {
	addr netip.AddrPort
	conn net.PacketConn
}

// listenUDP starts count servers in ns.
func listenUDP(t testing.TB, ns *netns.Namespace, addr string, count int) []*counter {
	t.Helper()
	var all []*counter
	for range count {
		c := &counter{}
		succeed(t, ns.Do(func() (err error) {
			c.conn, err = net.ListenPacket("udp", net.JoinHostPort(addr, "0"))
			return err
		}))
		t.Cleanup(func() { _ = c.conn.Close() })
		c.addr = netip.MustParseAddrPort(c.conn.LocalAddr().String())
		all = append(all, c)
	}
	return all
}

// received returns the datagrams that have arrived since the last call.
func (c *counter) received(t testing.TB) (texts []string) {
	t.Helper()
	buffer := make([]byte, 64)
	for {
		succeed(t, c.conn.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		n, _, err := c.conn.ReadFrom(buffer)
		if err != nil {
			return texts
		}
		texts = append(texts, string(buffer[:n]))
	}
}

// stage is two pods with socket translation and without packet programs.
type stage struct {
	network
	*Datapath
	t      testing.TB
	cgroup string
}

// newStage attaches the socket programs to a cgroup of its own and registers both pods.
func newStage(t testing.TB) *stage {
	t.Helper()
	s := &stage{network: routed(t), Datapath: openTest(t), t: t, cgroup: testCgroup(t)}
	if change, err := s.Sockets().Attach(t.Context(), s.cgroup); err != nil || change != Added {
		t.Fatalf("Attach: %v, %v", change, err)
	}
	s.registerBoth()
	return s
}

// registerBoth registers both pods' namespaces for socket translation.
func (s *stage) registerBoth() {
	s.t.Helper()
	for _, pod := range s.pods {
		if change, err := s.Sockets().Put(s.t.Context(), service.CLI, pod, HostScope); err != nil || change != Added {
			s.t.Fatalf("Put: %v, %v", change, err)
		}
	}
}

// in returns the stage for a subtest.
func (s *stage) in(t testing.TB) *stage {
	part := *s
	part.t = t
	return &part
}

// client and server return the places of the pods' processes.
func (s *stage) client() place { return place{s.pods[1], s.cgroup} }

func (s *stage) server() place { return place{s.pods[0], s.cgroup} }

// serve adds or replaces a service for TCP and UDP, and returns its frontend.
func (s *stage) serve(frontend string, backends ...netip.AddrPort) netip.AddrPort {
	s.t.Helper()
	f := netip.MustParseAddrPort(frontend)
	if _, _, err := s.Services().Put(s.t.Context(), service.CLI, service.Service{Frontend: f, Protocol: service.Any, Backends: service.Backends(backends...)}); err != nil {
		s.t.Fatal(err)
	}
	return f
}

// echo starts an echo server in the server's pod and returns its address.
func (s *stage) echo(protocol, ip string) netip.AddrPort {
	s.t.Helper()
	return testkit.Echo(s.t, s.pods[0], protocol, net.JoinHostPort(ip, "0"))
}

// wantNotFound fails the test unless err is a *NotFoundError.
func wantNotFound(t testing.TB, err error) {
	t.Helper()
	if none := (*NotFoundError)(nil); !errors.As(err, &none) {
		t.Errorf("%v, want a NotFoundError", err)
	}
}
