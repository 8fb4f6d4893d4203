// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/load/socket"
)

// streamBuffer is the size of one write and one read, that of iperf3.
const streamBuffer = 128 << 10

// tcpStream is one-way bulk transfer from client to server. The server counts the
// bytes that it received in the window by its own clock. The window starts and ends when
// a read returns, so the number of bytes is exact.
type tcpStream struct{}

func (tcpStream) name() string    { return load.TCPStream }
func (tcpStream) code() byte      { return 's' }
func (tcpStream) network() string { return "tcp" }

func (t tcpStream) drive(r *clientRun) (load.Measurement, error) {
	reports := make([]load.Served, len(r.sessions))
	cpu := make(cpuSpans, len(r.sessions))
	err := r.each(func(i int, s *session) error {
		if err := s.sendHeader(t); err != nil {
			return err
		}
		if err := socket.SetNoDelay(s.fd, false); err != nil {
			return err
		}
		start, err := r.barrier.wait(nil)
		if err != nil {
			return err
		}
		if s.spec.Limit > 0 {
			cpu[i].began = clock.ProcessCPU()
			err = t.sendLimit(s, r)
			cpu[i].ended = clock.ProcessCPU()
		} else {
			cpu[i], err = t.sendUntilReport(s, start)
		}
		if err != nil {
			return err
		}
		if err := s.closeWrite(); err != nil {
			return err
		}
		reports[i], err = s.readReport()
		return err
	})
	if err != nil {
		return load.Measurement{}, err
	}
	m, err := r.measurement(reports)
	if err != nil {
		return load.Measurement{}, err
	}
	m.ClientCPUSeconds = cpu.seconds(r.spec.Limit > 0)
	m.SetRate()
	return m, nil
}

// cpuSpan is the CPU time of the process at both ends of a flow's window.
type cpuSpan struct{ began, ended time.Duration }

// cpuSpans has the spans of all flows of a run.
type cpuSpans []cpuSpan

// seconds returns the CPU time of the process from the first beginning to the first end
// of a flow's window, or to the last end if each flow has its own.
func (c cpuSpans) seconds(last bool) float64 {
	byEnd := func(a, b cpuSpan) int { return int(a.ended - b.ended) }
	began := slices.MinFunc(c, func(a, b cpuSpan) int { return int(a.began - b.began) }).began
	if last {
		return (slices.MaxFunc(c, byEnd).ended - began).Seconds()
	}
	return (slices.MinFunc(c, byEnd).ended - began).Seconds()
}

// sendUntilReport writes until the server's report arrives. It looks for the report
// when its own window is over. It returns the CPU time of the process at the ends of its
// own window.
func (tcpStream) sendUntilReport(s *session, start time.Time) (cpu cpuSpan, err error) {
	buf := make([]byte, streamBuffer)
	windowEnd := s.spec.Warmup + s.spec.Duration
	begun, ended := false, false
	for {
		if _, err := s.write(buf); err != nil {
			return cpu, err
		}
		now := time.Since(start)
		if !begun && now >= s.spec.Warmup {
			begun, cpu.began = true, clock.ProcessCPU()
		}
		if now < windowEnd {
			continue
		}
		if !ended {
			ended, cpu.ended = true, clock.ProcessCPU()
		}
		if over, err := s.readable(); over || err != nil {
			return cpu, err
		}
		if now > windowEnd+s.spec.StallTime() {
			return cpu, fmt.Errorf("no report %v after the window: %w", s.spec.StallTime(), unix.ETIMEDOUT)
		}
	}
}

// sendLimit writes until all flows together have written the spec's limit.
func (tcpStream) sendLimit(s *session, r *clientRun) error {
	buf := make([]byte, streamBuffer)
	for {
		n := r.take(streamBuffer)
		if n == 0 {
			return nil
		}
		if _, err := s.Write(buf[:n]); err != nil {
			return err
		}
	}
}

// serve reads until the window of all flows is over, reports, and waits until the client
// has closed the connection.
func (tcpStream) serve(s *session) error {
	if s.spec.Standing {
		return serveBlocks(s)
	}
	counter := &s.run.stream
	if err := counter.start(); err != nil {
		return err
	}
	buf := make([]byte, streamBuffer)
	for over := false; !over; {
		n, err := s.read(buf)
		if errors.Is(err, io.EOF) {
			over, err = true, counter.end(s)
		} else if err == nil {
			over, err = counter.add(n)
		}
		switch {
		case errors.Is(err, errShort):
			return fmt.Errorf("client left after %d bytes in the window: %w", counter.counted(), io.ErrUnexpectedEOF)
		case err != nil:
			return err
		}
	}
	report := counter.reportOf(s)
	s.publish(report)
	if err := s.sendReport(report); err != nil {
		return err
	}
	return s.drain(buf)
}

// States of the window of a [streamCounter].
const (
	windowBefore = iota
	windowOpen
	windowClosed
)

// streamCounter counts the bytes of all flows of a TCP stream on the server. The window
// opens and closes when a read of any flow returns. Of each other flow, a read that
// returned at that moment may be counted a little late.
type streamCounter struct {
	run    *serverRun
	total  atomic.Uint64 // bytes of all flows
	state  atomic.Int32
	closed chan struct{} // closed with the window

	mu     sync.Mutex
	began  time.Time     // when the last flow joined
	opened time.Duration // when the window opened, since began
	cpu    time.Duration // of the process then
	before uint64        // total then
	ended  int           // flows that the client has ended
	report load.Served   // of all flows, set when the window closes
}

// start starts the time of the run. All flows have joined then. The window of a run with
// a limit opens here. Later calls do nothing.
func (c *streamCounter) start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.began.IsZero() {
		return nil
	}
	c.began = time.Now()
	if c.run.spec.Limit == 0 {
		return nil
	}
	c.state.Store(windowOpen)
	return c.beginClocks()
}

// add counts bytes that a flow has read. It reports whether the window is over.
func (c *streamCounter) add(n int) (over bool, err error) {
	now := time.Since(c.began)
	total := c.total.Add(uint64(n))
	spec := &c.run.spec
	switch c.state.Load() {
	case windowClosed:
		return true, nil
	case windowBefore:
		if now >= spec.Warmup {
			return false, c.open(now)
		}
	case windowOpen:
		if spec.Limit > 0 && total >= spec.Limit || spec.Limit == 0 && now-c.opened >= spec.Duration {
			return true, c.close(now)
		}
	}
	return false, nil
}

// open opens the window, unless another flow has.
func (c *streamCounter) open(now time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Load() != windowBefore {
		return nil
	}
	c.opened, c.before = now, c.total.Load()
	err := c.beginClocks()
	c.state.Store(windowOpen)
	return err
}

// beginClocks takes the clocks at the beginning of the window.
func (c *streamCounter) beginClocks() error {
	err := c.run.clock.Begin()
	c.cpu = clock.ProcessCPU()
	return err
}

// close closes the window, unless another flow has, and sets the report.
func (c *streamCounter) close(now time.Duration) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Load() != windowOpen {
		return nil
	}
	r := &c.report
	r.Count, r.Seconds, r.Flows = c.total.Load()-c.before, (now - c.opened).Seconds(), c.run.spec.Flows
	r.CPUSeconds = (clock.ProcessCPU() - c.cpu).Seconds()
	if r.Machine, err = c.run.clock.End(); err != nil {
		return err
	}
	c.state.Store(windowClosed)
	close(c.closed)
	return nil
}

// errShort ends a run whose client has sent too little.
var errShort = errors.New("client left")

// end waits for the other flows of a run with a limit after the client has ended a
// flow.
func (c *streamCounter) end(s *session) error {
	c.mu.Lock()
	c.ended++
	last := c.ended == c.run.spec.Flows
	c.mu.Unlock()
	if c.run.spec.Limit == 0 || last && c.state.Load() != windowClosed {
		return errShort
	}
	select {
	case <-c.closed:
		return nil
	case <-c.run.failed:
		return errOtherFlow
	case <-s.interrupted:
		return errCancelled
	}
}

// counted returns the number of bytes in the window so far.
func (c *streamCounter) counted() uint64 {
	if c.state.Load() == windowBefore {
		return 0
	}
	return c.total.Load() - c.before
}

// reportOf returns the report of all flows with a session's addresses.
func (c *streamCounter) reportOf(s *session) load.Served {
	r, own := c.report, s.served()
	r.Workload, r.Local, r.Peer, r.Congestion = own.Workload, own.Local, own.Peer, own.Congestion
	return r
}
