// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// The load: each of some clients in a pod, and as many outside, connects every pace. No connection may fail or
// retransmit: kernels acknowledge at once, even if the processes of a loaded machine wait.
const (
	whileRestarted = 2
	whileKilled    = 5
	pace           = 20 * time.Millisecond
	loadTimeout    = 10 * time.Second
)

// underLoad calls do while clients open connections, as many in a pod as outside, and while connections stand open.
// It returns the number of connections and the slowest time. It fails if a connection was lost, or with do's error.
func (c *Cluster) underLoad(clients int, do func() error) (string, error) {
	var load load
	err := c.withClient(func(ctx context.Context, pod *netns.Namespace) error {
		service, err := c.kubectl(nil, "-n", "smoke", "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
		if err != nil {
			return err
		}
		address, outside := net.JoinHostPort(service, "80"), net.JoinHostPort(c.nodes[0].addrs[0], "30080")
		if err := c.await(10*time.Second, func() error {
			return errors.Join(once(pod, address), once(c.outside, outside))
		}); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(ctx)
		defer load.Wait()
		defer cancel()
		for range clients {
			load.start(ctx, pod, address)
			load.start(ctx, c.outside, outside)
		}
		load.stand(ctx, pod, address)
		load.stand(ctx, c.outside, outside)
		return do()
	})
	return fmt.Sprintf("%d connections, %d lost, the slowest took %s", load.connections, load.lost,
			load.longest.Round(time.Millisecond)),
		errors.Join(append(load.errs, err)...)
}

// withClient calls do with the network namespace of a pod beside others and Services, and removes all of them.
func (c *Cluster) withClient(do func(context.Context, *netns.Namespace) error) error {
	if err := c.startPods(); err != nil {
		return err
	}
	pod, err := c.client()
	if err == nil {
		err = errors.Join(do(c.ctx, pod), pod.Close())
	}
	_, failed := c.kubectl(nil, "delete", "namespace", "smoke", "--timeout=120s")
	return errors.Join(err, failed)
}

// client returns the network namespace of a pod.
func (c *Cluster) client() (*netns.Namespace, error) {
	ip, err := c.kubectl(nil, "-n", "smoke", "get", "pod", "client-node1", "-o", "jsonpath={.status.podIP}")
	if err != nil {
		return nil, err
	}
	return c.nodes[0].podNamespace(ip)
}

// podNamespace returns the network namespace of a pod by its address.
func (n *node) podNamespace(ip string) (*netns.Namespace, error) {
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/root/run/netns/*", n.init.Process.Pid))
	for _, path := range paths {
		ns, err := netns.Open(path)
		if err != nil {
			return nil, err
		}
		var has []net.Addr
		if err := ns.Do(func() (err error) { has, err = net.InterfaceAddrs(); return err }); err != nil {
			return nil, errors.Join(err, ns.Close())
		}
		if slices.ContainsFunc(has, func(a net.Addr) bool { return strings.HasPrefix(a.String(), ip+"/") }) {
			return ns, nil
		}
		if err := ns.Close(); err != nil {
			return nil, err
		}
	}
	return nil, errors.Join(err, fmt.Errorf("no network namespace has %s", ip))
}

// load counts connections, and collects their errors.
type load struct {
	sync.WaitGroup
	mu                sync.Mutex
	connections, lost int
	longest           time.Duration // of one that is closed after an answer
	errs              []error       // of the first that were lost
}

// note counts a connection, and records when it was lost.
func (l *load) note(took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.connections++
	l.longest = max(l.longest, took)
	if err == nil {
		return
	}
	if l.lost++; l.lost <= 10 {
		l.errs = append(l.errs, fmt.Errorf("at %s: %w", time.Now().Format(time.TimeOnly), err))
	}
}

// start opens connections from a namespace until ctx ends.
func (l *load) start(ctx context.Context, ns *netns.Namespace, address string) {
	l.Go(func() {
		ticker := time.NewTicker(pace)
		defer ticker.Stop()
		for ctx.Err() == nil {
			begun := time.Now()
			err := once(ns, address)
			l.note(time.Since(begun), err)
			<-ticker.C
		}
	})
}

// stand sends requests on a connection that stands open until ctx ends.
func (l *load) stand(ctx context.Context, ns *netns.Namespace, address string) {
	l.Go(func() {
		conn, err := connect(ns, address, loadTimeout)
		if err == nil {
			defer conn.Close()
			answers := bufio.NewReader(conn)
			for err == nil && ctx.Err() == nil {
				err = errors.Join(ask(conn, answers), resent(conn))
				time.Sleep(pace)
			}
		}
		if err != nil {
			err = fmt.Errorf("a connection that stood open: %w", err)
		}
		l.note(0, err)
	})
}

// connect opens a connection from inside a namespace, within a time.
func connect(ns *netns.Namespace, address string, limit time.Duration) (conn net.Conn, err error) {
	err = ns.Do(func() error {
		conn, err = net.DialTimeout("tcp", address, limit)
		return err
	})
	return conn, err
}

// once opens a connection, sends a request, and closes it.
func once(ns *netns.Namespace, address string) error {
	conn, err := connect(ns, address, loadTimeout)
	if err != nil {
		return err
	}
	return errors.Join(ask(conn, bufio.NewReader(conn)), resent(conn), conn.Close())
}

// resent fails if a connection has sent a packet again: it, or its acknowledgement, was lost.
func resent(conn net.Conn) error {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var info *unix.TCPInfo
	var failed error
	if err := raw.Control(func(fd uintptr) {
		info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP,
			unix.TCP_INFO)
	}); err != nil {
		return err
	}
	if failed == nil && info.Total_retrans > 0 {
		failed = fmt.Errorf("%s to %s: %d packets were sent again", conn.LocalAddr(), conn.RemoteAddr(), info.Total_retrans)
	}
	return failed
}

// ask sends a request and reads the answer.
func ask(conn net.Conn, answers *bufio.Reader) error {
	if err := conn.SetDeadline(time.Now().Add(loadTimeout)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("GET /hostname HTTP/1.1\r\nHost: web\r\n\r\n")); err != nil {
		return err
	}
	response, err := http.ReadResponse(answers, nil)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("answer %s", response.Status)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return errors.Join(err, response.Body.Close())
}
