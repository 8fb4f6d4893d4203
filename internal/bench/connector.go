// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/netns"
)

const connectTimeout = 3 * time.Second

// connector opens connections from the client's place of a path to listeners at the server's, on a CPU.
type connector struct {
	lab        *lab.Lab
	cpu        int
	from, host *netns.Namespace
	listeners  []listener
	kept       map[tuple]struct{} // the connections of reach since the last forget
}

type listener struct {
	fd int
	at netip.AddrPort
}

// connect listens at two addresses: of a path's server and of a port that a policy denies. In a lab with services it
// listens at their backends and at one more port.
func connect(l *lab.Lab, cpu int, p evidence.Path) (*connector, error) {
	c := &connector{lab: l, cpu: cpu, kept: map[tuple]struct{}{}}
	var to *netns.Namespace
	for place, ns := range map[string]**netns.Namespace{p.Server: &to, p.Client: &c.from, lab.Host: &c.host} {
		var err error
		if *ns, err = l.Namespace(place); err != nil {
			return nil, err
		}
	}
	at := []netip.AddrPort{p.Listen, denied}
	if p.Lab.Policy == "" {
		at = nil
		for port := range uint16(lab.OtherBackends + 1) {
			at = append(at, netip.AddrPortFrom(lab.PodAIPs[0], lab.ServicePort+port))
		}
	}
	err := to.Do(func() error {
		for _, at := range at {
			fd, err := listen(at)
			if err != nil {
				return fmt.Errorf("listen on %s: %w", at, err)
			}
			c.listeners = append(c.listeners, listener{fd, at})
		}
		return nil
	})
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// listen returns a listening socket, which does not block. The load generator may listen there
// too, so its listener is closed while samples are taken.
func listen(at netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, load.Sockaddr(at)),
		unix.Listen(fd, 128))
	if err != nil {
		_ = unix.Close(fd)
	}
	return fd, err
}

func (c *connector) close() {
	for _, l := range c.listeners {
		_ = unix.Close(l.fd)
	}
}

// on runs do on the client's CPU, in its network namespace and in the lab's control group. Connections open there.
func (c *connector) on(do func() error) error {
	return c.lab.Within(func() error {
		return c.from.Do(func() error { return pinned(c.cpu, do) })
	})
}

func pinned(cpu int, do func() error) error {
	var old, own unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		return fmt.Errorf("CPUs of a thread: %w", err)
	}
	own.Set(cpu)
	if err := unix.SchedSetaffinity(0, &own); err != nil {
		return fmt.Errorf("run a thread on CPU %d: %w", cpu, err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &old) }()
	return do()
}

type tcpConnection struct {
	client, server int
	at             netip.AddrPort // of the listener
	took           time.Duration  // how long it took to open
}

func (c *connector) open(to netip.AddrPort) (tcpConnection, error) {
	var o tcpConnection
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return o, err
	}
	sockaddr := load.Sockaddr(to)
	limit := unix.NsecToTimeval(int64(connectTimeout))
	err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit), unix.SetsockoptTimeval(fd,
		unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
	if err == nil {
		started := time.Now()
		if err = unix.Connect(fd, sockaddr); errors.Is(err, unix.EINTR) {
			err = opened(fd, connectTimeout)
		}
		o.took = time.Since(started)
	}
	if err == nil {
		o.client = fd
		o.server, o.at, err = c.accept()
	}
	if err != nil {
		_ = unix.Close(fd)
		return o, fmt.Errorf("connect to %s: %w", to, err)
	}
	return o, nil
}

func (c *connector) try(to netip.AddrPort, within time.Duration) (bool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	if err = unix.Connect(fd, load.Sockaddr(to)); errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR) {
		err = opened(fd, within)
	}
	o := tcpConnection{client: fd, server: -1}
	if err == nil {
		o.server, _, err = c.accept()
	}
	o.close()
	if errors.Is(err, unix.ETIMEDOUT) {
		return false, nil
	}
	return err == nil, err
}

func opened(fd int, within time.Duration) error {
	for deadline := time.Now().Add(within); ; {
		events := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		left := unix.NsecToTimespec(max(time.Until(deadline), 0).Nanoseconds())
		switch n, _ := unix.Ppoll(events, &left, nil); {
		case n == 1:
			if number, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || number != 0 {
				return cmp.Or(err, error(unix.Errno(number)))
			}
			return nil
		case time.Now().After(deadline):
			return unix.ETIMEDOUT
		}
	}
}

// accept returns the socket of a connection that was just opened, and the address of the listener that has it.
func (c *connector) accept() (fd int, at netip.AddrPort, err error) {
	for range 2 {
		var events []unix.PollFd
		for _, l := range c.listeners {
			if fd, _, err = unix.Accept4(l.fd, unix.SOCK_CLOEXEC); err == nil {
				return fd, l.at, nil
			}
			events = append(events, unix.PollFd{Fd: int32(l.fd), Events: unix.POLLIN})
		}
		_, _ = unix.Poll(events, int(connectTimeout.Milliseconds())) // its last packet is on the way
	}
	return -1, at, errors.New("no listener has the connection")
}

// close resets a connection: TCP does not wait.
func (o tcpConnection) close() {
	for _, fd := range []int{o.client, o.server} {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.Close(fd)
	}
}

func socketNames(fd int) (local, peer netip.AddrPort) {
	if address, err := unix.Getsockname(fd); err == nil {
		local = load.AddrPort(address)
	}
	if address, err := unix.Getpeername(fd); err == nil {
		peer = load.AddrPort(address)
	}
	return local, peer
}

type tuple struct {
	port    uint16
	service netip.AddrPort
}

// denied is the address that the policy of a lab denies.
var denied = netip.AddrPortFrom(lab.PodAIPs[0], lab.DeniedPort)
