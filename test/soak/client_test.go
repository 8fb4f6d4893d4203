// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

const (
	// stallLimit is the time above which a connection that lost a packet counts as stalled.
	stallLimit = 200 * time.Millisecond
	// synRetries bounds connect(): 1 + 2 + 4 + 8 s.
	synRetries = 3
	// readTimeout bounds the wait for an answer.
	readTimeout = 10 * time.Second
	// hopeless is the number of failures after which a test makes no more connections: each takes its time.
	hopeless = 10
)

// client is a TCP socket whose calls block the thread: a goroutine that stays in a pod makes thousands a second.
type client int

// dial connects in the network namespace of the thread.
func dial(to netip.AddrPort) (client, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	timeout := unix.NsecToTimeval(readTimeout.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SYNCNT, synRetries),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("connect: %w", err)
	}
	return client(fd), nil
}

// exchange sends a request and reads its answer.
func (c client) exchange() error {
	if _, err := unix.Write(int(c), []byte{request}); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return c.read(1)
}

// read reads an answer of one byte; of none, until the server closes its side.
func (c client) read(want int) error {
	buffer := make([]byte, 16)
	for {
		n, err := unix.Read(int(c), buffer)
		switch {
		case errors.Is(err, unix.EINTR): // there is a time-out, so the kernel does not go on
			continue
		case err != nil:
			return fmt.Errorf("receive: %w", err)
		case n != want:
			return fmt.Errorf("received %d bytes, want %d", n, want)
		}
		return nil
	}
}

// finish closes the connection from this side first, and waits for the other, so that no packet of it is on its way.
func (c client) finish() error {
	if err := unix.Shutdown(int(c), unix.SHUT_WR); err != nil {
		return fmt.Errorf("shut down: %w", err)
	}
	return c.read(0)
}

func (c client) close() { _ = unix.Close(int(c)) }

// lost returns how many segments the client has sent again.
func (c client) lost() int {
	info, err := unix.GetsockoptTCPInfo(int(c), unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return int(info.Total_retrans)
}

// tally counts the events of connections.
type tally struct {
	sync.Mutex
	latency *hdrhistogram.Histogram // of connections and exchanges that succeeded, in microseconds
	made    int
	// late took longer than stallLimit without a loss: the machine was busy.
	late   int
	failed map[string]int
	// first is the number of the first connection that failed; 0 if none did.
	first int
}

func newTally() *tally {
	return &tally{latency: hdrhistogram.New(1, 60_000_000, 3), failed: make(map[string]int)}
}

// add counts a connection or an exchange that began at a time.
func (c *tally) add(begun time.Time, lost int, err error) {
	took := time.Since(begun)
	c.Lock()
	defer c.Unlock()
	c.made++
	if err == nil && took > stallLimit && lost > 0 {
		err = fmt.Errorf("stalled over %v", stallLimit)
	}
	if err != nil {
		c.failed[err.Error()]++
		if c.first == 0 {
			c.first = c.made
		}
		return
	}
	if took > stallLimit {
		c.late++
	}
	_ = c.latency.RecordValue(took.Microseconds())
}

// goesOn reports whether it makes sense to make more connections.
func (c *tally) goesOn() bool {
	c.Lock()
	defer c.Unlock()
	return c.failures() < hopeless
}

func (c *tally) failures() (sum int) {
	for _, n := range c.failed {
		sum += n
	}
	return sum
}

// call makes one short connection, and counts it.
func (c *tally) call(to netip.AddrPort) {
	begun := time.Now()
	conn, err := dial(to)
	if err != nil {
		c.add(begun, 0, err)
		return
	}
	defer conn.close()
	err = conn.exchange()
	took := time.Since(begun)
	lost := 0
	if took > stallLimit {
		lost = conn.lost()
	}
	if err == nil {
		err = conn.finish()
	}
	c.add(time.Now().Add(-took), lost, err)
}

func (c *tally) exchangeAll(idle []client) {
	for _, conn := range idle {
		if !c.goesOn() {
			return
		}
		begun := time.Now()
		before := conn.lost()
		err := conn.exchange()
		c.add(begun, conn.lost()-before, err)
	}
}

// lasted returns how many connections were made until the first one failed.
func (c *tally) lasted() string {
	c.Lock()
	defer c.Unlock()
	if c.first == 0 {
		return fmt.Sprintf("more than %d", c.made)
	}
	return fmt.Sprint(c.first - 1)
}

// want fails the test if a connection was refused, reset or stalled. what names the connections.
func (c *tally) want(t *testing.T, what string) {
	t.Helper()
	c.Lock()
	defer c.Unlock()
	t.Logf("%d %s: p50 %d µs, p99 %d µs, at most %d µs, %d late on a busy machine", c.made, what,
		c.latency.ValueAtQuantile(50), c.latency.ValueAtQuantile(99), c.latency.Max(), c.late)
	if len(c.failed) == 0 {
		return
	}
	var list []string
	for failure, n := range c.failed {
		list = append(list, fmt.Sprintf("%d × %s", n, failure))
	}
	t.Errorf("%s failed, number %d of %d first: %s", what, c.first, c.made, strings.Join(list, "; "))
}
