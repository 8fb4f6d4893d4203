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
	"mustang/internal/netstat"
	"mustang/internal/service"
)

const connectTimeout = 3 * time.Second

// connector opens connections from the client's place of a path to listeners at the server's, on a CPU.
type connector struct {
	lab        *lab.Lab
	cpu        int
	from, host *netns.Namespace
	listeners  map[int]netip.AddrPort // by socket
	kept       map[tuple]struct{}     // the connections of reach since the last forget
}

// tuple is what tells a client's connections apart.
type tuple struct {
	port    uint16
	service netip.AddrPort
}

// denied is the address that the policy of a lab denies.
var denied = netip.AddrPortFrom(lab.PodAIPs[0], lab.DeniedPort)

// connect listens at the address of a path's server and at the one that a policy denies, or at the backends of the
// lab's services and at one more port.
func connect(l *lab.Lab, cpu int, p evidence.Path) (_ *connector, err error) {
	c := &connector{lab: l, cpu: cpu, kept: map[tuple]struct{}{}, listeners: map[int]netip.AddrPort{}}
	var to *netns.Namespace
	for place, ns := range map[string]**netns.Namespace{p.Server: &to, p.Client: &c.from, lab.Host: &c.host} {
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
	if err = to.Do(func() error { return c.listen(at) }); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// listen opens listening sockets, which do not block. The load generator may listen there
// too, so its listener is closed while samples are taken.
func (c *connector) listen(all []netip.AddrPort) error {
	for _, at := range all {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		c.listeners[fd] = at
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, load.Sockaddr(at)),
			unix.Listen(fd, 128))
		if err != nil {
			return fmt.Errorf("listen on %s: %w", at, err)
		}
	}
	return nil
}

func (c *connector) close() {
	for fd := range c.listeners {
		_ = unix.Close(fd)
	}
}

// on runs do on the client's CPU, in its network namespace and in the lab's control group. Connections are opened
// there.
func (c *connector) on(do func() error) error {
	return c.lab.Within(func() error {
		return c.from.Do(func() error {
			var old, own unix.CPUSet
			own.Set(c.cpu)
			if err := unix.SchedGetaffinity(0, &old); err != nil {
				return fmt.Errorf("CPUs of a thread: %w", err)
			}
			if err := unix.SchedSetaffinity(0, &own); err != nil {
				return fmt.Errorf("run a thread on CPU %d: %w", c.cpu, err)
			}
			defer func() { _ = unix.SchedSetaffinity(0, &old) }()
			return do()
		})
	})
}

type tcpConnection struct {
	client, server int
	at             netip.AddrPort // the address of the listener that has it
	took           time.Duration  // until it was open
}

// open opens a connection and measures its time.
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

// try reports whether a connection to the denied address opens in time, and ends it.
func (c *connector) try(within time.Duration) (bool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	if err = unix.Connect(fd, load.Sockaddr(denied)); errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR) {
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

// opened waits until the connection of a socket is open.
func opened(fd int, within time.Duration) error {
	for deadline := time.Now().Add(within); ; {
		events := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		left := unix.NsecToTimespec(max(time.Until(deadline), 0).Nanoseconds())
		switch n, _ := unix.Ppoll(events, &left, nil); {
		case n == 1:
			number, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if number != 0 {
				return cmp.Or(err, error(unix.Errno(number)))
			}
			return err
		case time.Now().After(deadline):
			return unix.ETIMEDOUT
		}
	}
}

// accept returns the socket of a connection that was just opened, and the address of the listener that has it.
func (c *connector) accept() (fd int, at netip.AddrPort, err error) {
	for range 2 {
		var events []unix.PollFd
		for listener, at := range c.listeners {
			if fd, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC); err == nil {
				return fd, at, nil
			}
			events = append(events, unix.PollFd{Fd: int32(listener), Events: unix.POLLIN})
		}
		_, _ = unix.Poll(events, int(connectTimeout.Milliseconds())) // its last packet is on the way
	}
	return -1, at, errors.New("no listener has the connection")
}

// close ends a connection at once, without the states in which TCP waits.
func (o tcpConnection) close() {
	for _, fd := range []int{o.client, o.server} {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.Close(fd)
	}
}

// proof returns the measurement of connections of which this is the last, with the addresses that both ends see.
func (o tcpConnection) proof(connections int) load.Measurement {
	m := load.Measurement{Workload: load.TCPCRR, Flows: 1, Count: uint64(connections)}
	m.ClientLocal, m.ClientPeer = socketNames(o.client)
	m.ServerLocal, m.ServerPeer = socketNames(o.server)
	return m
}

func socketNames(fd int) (local, peer netip.AddrPort) {
	near, _ := unix.Getsockname(fd)
	far, _ := unix.Getpeername(fd)
	return load.AddrPort(near), load.AddrPort(far)
}

// reach opens a connection to a service and closes it. It returns when it was open, and whether it shows that the
// service has its backends. Conntrack keeps closed connections for seconds, and takes the packets from a port that
// comes again to where they went before, so such a connection shows nothing.
func (c *connector) reach(s service.Service) (opened time.Time, shows bool, err error) {
	if len(c.kept) >= mostKept {
		if err := c.forget(); err != nil {
			return opened, false, err
		}
	}
	o, err := c.open(s.Frontend)
	if err != nil {
		return opened, false, err
	}
	opened = time.Now()
	local, _ := socketNames(o.client)
	t := tuple{local.Port(), s.Frontend}
	_, again := c.kept[t]
	c.kept[t] = struct{}{}
	o.close()
	return opened, !again && leadsTo(s, o), nil
}

// forget empties the table of conntrack that the client's connections are in.
func (c *connector) forget() error {
	clear(c.kept)
	return netstat.Flush(c.host)
}

// lookFor returns a look that finds out whether connections are allowed or denied: the end of one that opens, or the
// begin of one that does not.
func (c *connector) lookFor(allow bool) look {
	return func() (time.Time, bool, error) {
		if allow {
			open, err := c.try(openTime)
			return time.Now(), open, err
		}
		at := time.Now()
		open, err := c.try(deniedTime)
		if !open { // also after an error: a policy that comes amid a handshake leaves it half done
			open, err = c.try(deniedTime)
		}
		return at, !open, err
	}
}
