// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/netns"
)

// connection is the client's part of a connection that carries load in slices. It belongs
// to the one command that has the worker's turn, or shuts it.
type connection struct {
	spec     load.Spec
	thread   threadConfig
	window   *clock.Window
	sessions []*session // of the flows
	flows    []flow
	helpers  []helper // of all flows but the first
	closers  []io.Closer
	total    load.Measurement
	err      error // why no more load can be carried
}

// helper is a thread that carries one of several flows.
type helper struct {
	bursts chan burst
	done   chan outcome
}

// outcome is the end of a burst on one flow.
type outcome struct {
	result load.SliceResult
	err    error
}

// openPersistent opens the sockets of a spec and shakes hands with the server.
func (w *worker) openPersistent(ctx context.Context, spec load.Spec) (_ *connection, err error) {
	workload := lookup(spec.Workload)
	c := &connection{spec: spec, thread: w.thread}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.window, err = w.openWindow(spec.Exact); err != nil {
		return nil, err
	}
	if err := inNamespace(spec.Namespace, func() error {
		for range spec.FlowCount() {
			s, err := dial(ctx, workload.kind, spec)
			if err != nil {
				return err
			}
			c.sessions = append(c.sessions, s)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	uninterrupted := context.AfterFunc(ctx, c.interrupt)
	defer func() {
		if !uninterrupted() {
			err = errCancelled
		}
	}()
	for i, s := range c.sessions {
		report, err := s.handshake(workload)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			c.total = load.Measurement{
				Workload: spec.Workload, Flows: spec.FlowCount(), Window: spec.Window, Reverse: spec.Reverse,
				ClientLocal: s.local, ClientPeer: s.peer, ServerLocal: report.Local, ServerPeer: report.Peer,
				ClientCongestion: s.congestion,
			}
		}
		f, err := workload.open(c, s)
		if err != nil {
			return nil, err
		}
		if c.flows = append(c.flows, f); i > 0 {
			c.help(f)
		}
	}
	return c, nil
}

// inNamespace calls fn inside the network namespace at a path, or where it is if the path
// is empty. Sockets that fn opens stay there.
func inNamespace(path string, fn func() error) error {
	if path == "" {
		return fn()
	}
	ns, err := netns.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	return ns.Do(fn)
}

// handshake announces a flow to the server and returns the server's answer.
func (s *session) handshake(w workload) (report load.Served, err error) {
	if w.kind == unix.SOCK_DGRAM {
		return s.hello()
	}
	if err := s.writeMessage(newHeader(s.spec)); err != nil {
		return load.Served{}, err
	}
	report, err = s.readReport()
	if err == nil && report.Congestion != s.congestion {
		err = fmt.Errorf("the client uses congestion control %q, the server %q", s.congestion, report.Congestion)
	}
	return report, err
}

// help starts the thread of a flow.
func (c *connection) help(f flow) {
	h := helper{bursts: make(chan burst), done: make(chan outcome)}
	c.helpers = append(c.helpers, h)
	go func() {
		err := c.thread.run(func() error {
			for b := range h.bursts {
				r, err := f.carry(b)
				if err != nil {
					c.interrupt() // or the other flows would wait
				}
				h.done <- outcome{r, err}
			}
			return nil
		})
		for range h.bursts { // the thread could not be set up
			h.done <- outcome{err: err}
		}
	}()
}

// slice carries load for one slice and returns what was counted.
func (c *connection) slice(s load.Slice) (r load.SliceResult, err error) {
	if c.err != nil {
		return load.SliceResult{}, c.err
	}
	defer func() {
		if err != nil {
			c.err = err
			c.interrupt()
		}
	}()
	before := c.retransmits()
	if lead := s.LeadTime(); lead > 0 || c.spec.Settle > 0 {
		if _, err := c.carry(burst{length: lead, limit: c.spec.Settle}); err != nil {
			return load.SliceResult{}, err
		}
	}
	if err := c.window.Begin(); err != nil {
		return load.SliceResult{}, err
	}
	if r, err = c.carry(burst{length: s.Duration, limit: c.spec.Limit, counted: true}); err != nil {
		return load.SliceResult{}, err
	}
	if err := c.window.End(); err != nil {
		return load.SliceResult{}, err
	}
	for _, f := range c.flows {
		if err := f.idle(); err != nil {
			return load.SliceResult{}, err
		}
	}
	r.Machine, r.Retransmits = c.window.Machine, c.retransmits()-before
	c.total.AddSlice(r)
	c.total.BusyNanos += c.window.BusyNanos
	return r, nil
}

// carry carries a burst, which begins now, on all flows side by side.
func (c *connection) carry(b burst) (load.SliceResult, error) {
	b.start = time.Now()
	for _, h := range c.helpers {
		h.bursts <- b
	}
	r, err := c.flows[0].carry(b)
	if err != nil {
		c.interrupt()
	}
	for _, h := range c.helpers {
		o := <-h.done
		r.AddFlow(o.result)
		if o.err != nil && (err == nil || errors.Is(err, errCancelled)) {
			err = o.err
		}
	}
	return r, err
}

func (c *connection) retransmits() (n uint32) {
	for _, s := range c.sessions {
		if info, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n += info.Total_retrans
		}
	}
	return n
}

// finish ends the connection with the server and returns the measurement of its life.
func (c *connection) finish() (load.Measurement, error) {
	if c.err != nil {
		return load.Measurement{}, c.err
	}
	m := &c.total
	var served uint64
	for _, f := range c.flows {
		report, err := f.end()
		if err != nil {
			return load.Measurement{}, err
		}
		served += report.Count
	}
	// Datagrams and their answers may come after the end of their slice, or not at all, and so
	// may the responses of connections that are lost.
	exact := m.Workload == load.TCPStream || m.Workload == load.TCPRR
	if served < m.Count || served > m.Count && exact {
		return load.Measurement{}, fmt.Errorf("client counts %d, server %d", m.Count, served)
	}
	m.SetRate()
	if m.Workload == load.UDPStream && m.Seconds > 0 {
		m.Offered = float64(m.Sent) * float64(c.spec.DatagramSize()) * 8 / 1e9 / m.Seconds
	}
	return *m, nil
}

// interrupt ends all flows from another goroutine.
func (c *connection) interrupt() {
	for _, s := range c.sessions {
		s.interrupt()
	}
}

func (c *connection) close() {
	for _, h := range c.helpers {
		close(h.bursts)
	}
	for _, s := range c.sessions {
		s.close()
	}
	for _, closer := range c.closers {
		_ = closer.Close()
	}
}
