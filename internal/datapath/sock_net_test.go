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
	"unsafe"

	"golang.org/x/sys/unix"

	"mustang/internal/cgroup"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// testCgroup creates a threaded cgroup below the test's own, so that single threads can join it.
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
		succeed(t, err)
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

func threaded(t testing.TB, path string) {
	t.Helper()
	succeed(t, os.WriteFile(filepath.Join(path, "cgroup.type"), []byte("threaded"), 0))
}

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

func joinCgroup(path string) error {
	return os.WriteFile(filepath.Join(path, "cgroup.threads"), []byte("0"), 0)
}

// counter is a UDP server that does not reply; received returns its datagrams.
type counter struct {
	addr netip.AddrPort
	conn net.PacketConn
}

func listenUDP(t testing.TB, ns *netns.Namespace, addr string, count int) []*counter {
	t.Helper()
	var all []*counter
	for range count {
		conn := listenAt(t, ns, net.JoinHostPort(addr, "0"))
		all = append(all, &counter{addrOf(conn), conn})
	}
	return all
}

// received returns the datagrams that have arrived since the last call, and waits for the least number of them.
func (c *counter) received(t testing.TB, least int) (texts []string) {
	t.Helper()
	buffer := make([]byte, 64)
	for {
		wait := 20 * time.Millisecond
		if len(texts) < least {
			wait = time.Minute
		}
		succeed(t, c.conn.SetReadDeadline(time.Now().Add(wait)))
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

// bareStage attaches the socket programs to its own cgroup.
func bareStage(t testing.TB) *stage {
	t.Helper()
	s := &stage{network: routed(t), Datapath: openTest(t), t: t, cgroup: testCgroup(t)}
	equal(t, must(s.Sockets().Attach(t.Context(), s.cgroup))(t), Added, "Attach")
	return s
}

// newStage registers both pods too.
func newStage(t testing.TB) *stage {
	t.Helper()
	s := bareStage(t)
	s.registerBoth()
	return s
}

// registerBoth registers both pods' namespaces for socket translation.
func (s *stage) registerBoth() {
	s.t.Helper()
	for _, pod := range s.pods {
		change, err := s.Sockets().Put(s.t.Context(), service.CLI, pod, HostScope)
		testkit.Require(s.t, err == nil && change == Added, "Put: %v, %v", change, err)
	}
}

func (s *stage) in(t testing.TB) *stage {
	part := *s
	part.t = t
	return &part
}

func (s *stage) client() place { return place{s.pods[1], s.cgroup} }

func (s *stage) server() place { return place{s.pods[0], s.cgroup} }

// serve adds or replaces a service for TCP and UDP, and returns its frontend.
func (s *stage) serve(frontend string, backends ...netip.AddrPort) netip.AddrPort {
	s.t.Helper()
	want := service.Service{Frontend: netip.MustParseAddrPort(frontend), Backends: service.Backends(backends...)}
	putService(s.t, s.Datapath, want)
	return want.Frontend
}

func (s *stage) echo(protocol, ip string) netip.AddrPort {
	s.t.Helper()
	return testkit.Echo(s.t, s.pods[0], protocol, net.JoinHostPort(ip, "0"))
}

// wantNotFound ends the test unless err is a *NotFoundError.
func wantNotFound(t testing.TB, err error) {
	t.Helper()
	failsAs[*NotFoundError](t, err)
}

// socketFD is a socket, by its file descriptor, that was opened in a place.
type socketFD struct {
	t  testing.TB
	fd int
	v6 bool // the socket's family
}

// open opens a socket whose calls time out after some seconds.
func (p place) open(t testing.TB, v6 bool, kind int) *socketFD {
	t.Helper()
	return p.openAll(t, make([]*socketFD, 1), v6, kind)[0]
}

// openAll fills a list with sockets. It enters the place once, which takes much longer than opening a socket.
func (p place) openAll(t testing.TB, all []*socketFD, v6 bool, kind int) []*socketFD {
	t.Helper()
	domain := unix.AF_INET
	if v6 {
		domain = unix.AF_INET6
	}
	succeed(t, p.do(t, func() error {
		for i := range all {
			fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			all[i] = &socketFD{t: t, fd: fd, v6: v6}
			t.Cleanup(all[i].close)
			for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
				if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &unix.Timeval{Sec: 5}); err != nil {
					return err
				}
			}
		}
		return nil
	}))
	return all
}

func (s *socketFD) close() {
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
		s.fd = -1
	}
}

// addr converts an address to the socket's family: IPv4 on an IPv6 socket is v4-mapped.
func (s *socketFD) addr(a netip.AddrPort) unix.Sockaddr {
	if s.v6 {
		return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

// sockaddr converts an address to its own family.
func sockaddr(a netip.AddrPort) unix.Sockaddr { return (&socketFD{v6: a.Addr().Is6()}).addr(a) }

func plainAddr(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

func (s *socketFD) connect(a netip.AddrPort) error {
	err := unix.Connect(s.fd, s.addr(a))
	if !errors.Is(err, unix.EINTR) {
		return err
	}
	// A signal of Go's scheduler interrupted the wait; the kernel still connects.
	for errors.Is(err, unix.EINTR) {
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}, 5000)
	}
	if err != nil {
		return err
	}
	code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	return err
}

func (s *socketFD) mustConnect(a netip.AddrPort) {
	s.t.Helper()
	err := s.connect(a)
	testkit.Require(s.t, err == nil, "connect to %s: %v", a, err)
}

func (s *socketFD) peer() netip.AddrPort {
	s.t.Helper()
	sa, err := unix.Getpeername(s.fd)
	testkit.Succeed(s.t, err)
	return plainAddr(sa)
}

// send sends a datagram to a, or to the connected peer if a is zero.
func (s *socketFD) send(text string, a netip.AddrPort) error {
	if !a.IsValid() {
		_, err := unix.Write(s.fd, []byte(text))
		return err
	}
	return unix.Sendto(s.fd, []byte(text), 0, s.addr(a))
}

func (s *socketFD) mustSend(text string, a netip.AddrPort) {
	s.t.Helper()
	err := s.send(text, a)
	testkit.Require(s.t, err == nil, "send to %s: %v", a, err)
}

func (s *socketFD) receive() (string, netip.AddrPort) {
	s.t.Helper()
	buffer := make([]byte, 2048)
	var n int
	var from unix.Sockaddr
	err := uninterrupted(func() (err error) { n, from, err = unix.Recvfrom(s.fd, buffer, 0); return err })
	testkit.Require(s.t, err == nil, "receive: %v", err)
	return string(buffer[:n]), plainAddr(from)
}

// ask sends to an echo server and fails the test unless the echo comes from want.
func (s *socketFD) ask(a, want netip.AddrPort) {
	s.t.Helper()
	text := fmt.Sprintf("for %s", a)
	s.mustSend(text, a)
	got, from := s.receive()
	testkit.Check(s.t, got == text && from == want, "received %q from %s, want %q from %s", got, from, text, want)
}

func (s *socketFD) read(buffer []byte) (n int, err error) {
	err = uninterrupted(func() error { n, err = unix.Read(s.fd, buffer); return err })
	return n, err
}

// uninterrupted repeats a call while a signal of Go's scheduler interrupts it: the kernel restarts no call with a
// timeout.
func uninterrupted(call func() error) error {
	err := call()
	for errors.Is(err, unix.EINTR) {
		err = call()
	}
	return err
}

// exchange checks that the peer of a connected TCP socket is an echo server, and returns the client address that the
// server sees.
func (s *socketFD) exchange() string {
	s.t.Helper()
	s.mustSend("hello", netip.AddrPort{})
	buffer, got := make([]byte, 256), ""
	for !strings.HasSuffix(got, "\nhello") {
		n, err := s.read(buffer)
		testkit.Require(s.t, err == nil && n != 0, "read %q, then %v", got, err)
		got += string(buffer[:n])
	}
	return strings.TrimSuffix(got, "\nhello")
}

func (s *socketFD) disconnect() {
	s.t.Helper()
	to := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(s.fd), uintptr(unsafe.Pointer(&to)), unsafe.Sizeof(to))
	testkit.Require(s.t, errno == 0, "disconnect: %v", errno)
}
