// SPDX-License-Identifier: Apache-2.0

package servicebench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/socket"
	"mustang/internal/netns"
	"mustang/internal/service"
)

// Limits of the time until a change takes effect, and of a connection.
const (
	changeTimeout  = 2 * time.Minute
	connectTimeout = 3 * time.Second
)

// client connects to services of a lab, and has the listeners of all their backends.
type client struct {
	task      Task
	from      *netns.Namespace
	listeners []listener
}

// listener is the socket of a backend.
type listener struct {
	fd int
	at netip.AddrPort
}

// newClient listens at the backends of the task's services, and at one more port.
func newClient(t Task) (*client, error) {
	c := &client{task: t}
	to, err := t.Lab.Namespace(t.Path.Server)
	if err != nil {
		return nil, err
	}
	if c.from, err = t.Lab.Namespace(t.Path.Client); err != nil {
		return nil, err
	}
	err = to.Do(func() error {
		for port := range uint16(lab.OtherBackends + 1) {
			at := netip.AddrPortFrom(lab.PodAIPs[0], lab.ServicePort+port)
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
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, socket.Sockaddr(at)), unix.Listen(fd, 128))
	if err != nil {
		_ = unix.Close(fd)
	}
	return fd, err
}

// close closes the listeners.
func (c *client) close() {
	for _, l := range c.listeners {
		_ = unix.Close(l.fd)
	}
}

// changed is the backend that no service has before a change.
func (c *client) changed() netip.AddrPort { return c.listeners[lab.OtherBackends].at }

// connection is an open connection to a service.
type connection struct {
	client, server int
	at             netip.AddrPort // the backend
	took           time.Duration
}

// connect opens a connection from the present network namespace, and measures the time until it
// is open.
func (c *client) connect(to netip.AddrPort) (connection, error) {
	var o connection
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return o, err
	}
	sockaddr := socket.Sockaddr(to)
	if err = socket.SetTimeouts(fd, connectTimeout); err == nil {
		started := time.Now()
		if err = unix.Connect(fd, sockaddr); errors.Is(err, unix.EINTR) {
			err = opened(fd)
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

// opened waits until the connection of a socket is open, whose connect was interrupted by a signal
// of the Go runtime.
func opened(fd int) error {
	deadline := time.Now().Add(connectTimeout)
	for time.Now().Before(deadline) {
		events := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if n, _ := unix.Poll(events, int(connectTimeout.Milliseconds())); n == 1 {
			if number, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || number != 0 {
				return cmp.Or(err, error(unix.Errno(number)))
			}
			return nil
		}
	}
	return unix.ETIMEDOUT
}

// accept returns the socket of a connection that was just opened, and the backend that has it.
func (c *client) accept() (fd int, at netip.AddrPort, err error) {
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
	return -1, at, errors.New("no backend has the connection")
}

// close ends a connection at once, without the states in which TCP waits.
func (o connection) close() {
	for _, fd := range []int{o.client, o.server} {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.Close(fd)
	}
}

// on runs do on the client's CPU, in its network namespace and in the lab's control group.
func (c *client) on(do func() error) error {
	return c.task.Lab.Within(func() error {
		return c.from.Do(func() error { return pinned(c.task.CPU, do) })
	})
}

// connectAll connects to services picked at random, one after the other. It returns how long
// each took, and the addresses of the last as evidence of all.
func (c *client) connectAll(ctx context.Context, services []service.Service, n int) (m load.Measurement, took []time.Duration, err error) {
	services = slices.DeleteFunc(services, func(s service.Service) bool { return !isOther(s) })
	if len(services) == 0 {
		return m, nil, errors.New("the lab has no other services")
	}
	m = load.Measurement{Workload: load.TCPCRR, Flows: 1, Count: uint64(n)}
	err = c.on(func() error {
		for i := range n {
			if err := ctx.Err(); err != nil {
				return err
			}
			s := services[rand.IntN(len(services))]
			o, err := c.connect(s.Frontend)
			if err != nil {
				return err
			}
			took = append(took, o.took)
			if i == n-1 {
				m.ClientLocal, m.ClientPeer = names(o.client)
				m.ServerLocal, m.ServerPeer = names(o.server)
				if !slices.ContainsFunc(s.Backends, func(b service.Backend) bool { return b.Addr == o.at }) {
					return fmt.Errorf("%s answered for %s", o.at, s.Frontend)
				}
			}
			o.close()
		}
		return nil
	})
	return m, took, err
}

// names returns a socket's own address and that of its peer.
func names(fd int) (local, peer netip.AddrPort) {
	if address, err := unix.Getsockname(fd); err == nil {
		local = socket.AddrPort(address)
	}
	if address, err := unix.Getpeername(fd); err == nil {
		peer = socket.AddrPort(address)
	}
	return local, peer
}

// awaitChange changes service i, and connects to it all the while. It returns the time from the
// begin of the change to the end of the first connection to a new backend.
func (c *client) awaitChange(ctx context.Context, l *lab.Lab, services []service.Service, i int) (took time.Duration, err error) {
	s := services[i]
	isNew := func(o connection) bool {
		return slices.ContainsFunc(s.Backends, func(b service.Backend) bool { return b.Addr == o.at })
	}
	var changed chan error
	begun := make(chan time.Time, 1)
	err = c.on(func() error {
		if o, err := c.connect(s.Frontend); err != nil {
			return err
		} else if o.close(); isNew(o) {
			return fmt.Errorf("%s has reached %s before its change", s.Frontend, o.at)
		}
		changed = make(chan error, 1)
		go func() { // on another CPU, which may take its time to begin
			begun <- time.Now()
			changed <- l.ChangeService(ctx, services, i)
		}()
		for deadline := time.Now().Add(changeTimeout); time.Now().Before(deadline) && ctx.Err() == nil; {
			o, err := c.connect(s.Frontend)
			if err != nil {
				return err
			}
			now := time.Now()
			o.close()
			if isNew(o) {
				took = now.Sub(<-begun)
				return nil
			}
		}
		return fmt.Errorf("the change of %s had no effect within %v", s.Frontend, changeTimeout)
	})
	if changed != nil {
		err = errors.Join(err, <-changed)
	}
	return took, err
}
