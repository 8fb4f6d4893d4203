// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/netns"
)

// connection is the client's part of a connection. It belongs to the command that has the worker's turn, or shuts it.
type connection struct {
	spec      load.Spec
	namespace *netns.Namespace // nil: the agent's own
	thread    threadConfig
	machine   *clock.Machine
	sessions  []*session // of the flows
	flows     []flow
	helpers   []helper // of all flows but the first
	total     load.Measurement
	err       error // why no more load can be carried
}

// helper is a thread that carries one of several flows.
type helper struct {
	bursts chan burst
	done   chan outcome
}

type outcome struct {
	result load.SliceResult
	err    error
}

func (w *worker) openPersistent(ctx context.Context, spec load.Spec) (_ *connection, err error) {
	workload := lookup(spec.Workload)
	c := &connection{spec: spec, thread: w.thread}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	openClock := clock.OpenMachine
	if spec.Exact {
		openClock = clock.OpenExact
	}
	if c.machine, err = openClock(); err != nil {
		return nil, err
	}
	if c.namespace, err = openNamespace(spec.Namespace); err != nil {
		return nil, err
	}
	if err := inNamespace(c.namespace, func() error {
		for range spec.FlowCount() {
			s, err := dial(ctx, workload.kind, spec, w.congestion)
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
		report, err := s.handshake()
		if err != nil {
			return nil, err
		}
		if s.Slot = report.Slot; i == 0 {
			c.total = load.Measurement{
				Workload: spec.Workload, Flows: spec.FlowCount(), Window: spec.Window, Reverse: spec.Reverse,
				ClientLocal: s.Local, ClientPeer: s.Peer, ServerLocal: report.Local, ServerPeer: report.Peer,
				ClientCongestion: s.Congestion,
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

// openNamespace opens the network namespace at a path, nil if the path is empty.
func openNamespace(path string) (*netns.Namespace, error) {
	if path == "" {
		return nil, nil
	}
	return netns.Open(path)
}

// inNamespace calls fn inside a network namespace, or where it is if ns is nil. Sockets that fn opens stay there.
func inNamespace(ns *netns.Namespace, fn func() error) error {
	if ns == nil {
		return fn()
	}
	return ns.Do(fn)
}

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

func (c *connection) slice(s load.Slice) (load.SliceResult, error) {
	if c.err != nil {
		return load.SliceResult{}, c.err
	}
	r, err := c.measure(s)
	if err != nil {
		c.err = err
		c.interrupt()
		return load.SliceResult{}, err
	}
	c.total.AddSlice(r)
	c.total.BusyNanos += c.machine.BusyNanos
	return r, nil
}

func (c *connection) measure(s load.Slice) (r load.SliceResult, err error) {
	before := c.retransmits()
	if lead := s.LeadTime(); lead > 0 || c.spec.Settle > 0 {
		if _, err := c.carry(burst{length: lead, limit: c.spec.Settle}); err != nil {
			return r, err
		}
	}
	if err := c.machine.Begin(); err != nil {
		return r, err
	}
	if r, err = c.carry(burst{length: s.Duration, limit: c.spec.Limit, counted: true}); err != nil {
		return r, err
	}
	if r.Machine, err = c.machine.End(); err != nil {
		return r, err
	}
	for _, f := range c.flows {
		if err := f.idle(); err != nil {
			return r, err
		}
	}
	r.Retransmits = c.retransmits() - before
	return r, nil
}

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

func (c *connection) finish() error {
	if c.err != nil {
		return c.err
	}
	m := &c.total
	var served uint64
	for _, f := range c.flows {
		report, err := f.end()
		if err != nil {
			return err
		}
		served += report.Count
	}
	// Datagrams, answers and the responses of lost connections may come after the end of their slice, or not at all.
	exact := m.Workload == load.TCPStream || m.Workload == load.TCPRR
	if served < m.Count || served > m.Count && exact {
		return fmt.Errorf("client counts %d, server %d", m.Count, served)
	}
	m.SetRate()
	if m.Workload == load.UDPStream && m.Seconds > 0 {
		m.Offered = float64(m.Sent) * float64(c.spec.DatagramSize()) * 8 / 1e9 / m.Seconds
	}
	return nil
}

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
	if c.machine != nil {
		c.machine.Close()
	}
	if c.namespace != nil {
		_ = c.namespace.Close()
	}
}
