// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/load/socket"
)

// flow is the client's part of one flow of a standing connection.
type flow interface {
	// carry carries load for the time of a burst, and returns when nothing of it is in
	// flight.
	carry(burst) (tally, error)
	// rest tells the server that a slice is over.
	rest() error
	// end ends the flow and returns the server's figures of all that was counted.
	end() (load.Served, error)
}

// burst is a stretch of load on all flows of a connection: a slice's lead, or the rest of
// it.
type burst struct {
	start   time.Time
	length  time.Duration
	counted bool
}

// tally is what a burst has carried. Its time runs from the burst's start.
type tally struct {
	count, sent, received, overflowed, outOfOrder uint64
	elapsed, latency                              time.Duration
}

// add adds the tally of another flow of the same burst.
func (t *tally) add(o tally) {
	t.count += o.count
	t.sent += o.sent
	t.received += o.received
	t.overflowed += o.overflowed
	t.outOfOrder += o.outOfOrder
	t.latency += o.latency
	t.elapsed = max(t.elapsed, o.elapsed)
}

// standingConn is the client's state of a connection that carries load in slices. It
// belongs to the one command that has the worker's turn, or shuts it.
type standingConn struct {
	run       *clientRun
	flows     []flow
	helpers   []helper // of all flows but the first
	histogram *hdrhistogram.Histogram
	connects  *hdrhistogram.Histogram
	closers   []io.Closer
	conn      load.Conn
	total     load.Measurement
	err       error // why no more load can be carried
}

// helper is a thread that carries one of several flows.
type helper struct {
	bursts chan burst
	done   chan outcome
}

// outcome is the end of a burst on one flow.
type outcome struct {
	tally tally
	err   error
}

// openStanding opens the sockets of a spec and shakes hands with the server.
func (w *worker) openStanding(ctx context.Context, spec load.Spec) (_ *standingConn, err error) {
	workload, err := lookup(spec.Workload)
	if err != nil {
		return nil, err
	}
	r, err := openRun(ctx, workload, spec)
	if err != nil {
		return nil, err
	}
	r.thread = w.thread
	c := &standingConn{run: r}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	uninterrupted := context.AfterFunc(ctx, r.interrupt)
	defer func() {
		if !uninterrupted() {
			err = errCancelled
		}
	}()
	reports, err := r.greet(workload)
	if err != nil {
		return nil, err
	}
	for _, s := range r.sessions {
		f, err := workload.stand(c, s)
		if err != nil {
			return nil, err
		}
		c.flows = append(c.flows, f)
	}
	for _, f := range c.flows[1:] {
		c.help(f)
	}
	if c.total, err = r.measurement(reports[:1]); err != nil {
		return nil, err
	}
	c.total.Retransmits, c.total.Histogram, c.total.Connects = 0, c.histogram, c.connects
	c.conn = load.Conn{
		ClientLocal: c.total.ClientLocal, ClientPeer: c.total.ClientPeer,
		ServerLocal: c.total.ServerLocal, ServerPeer: c.total.ServerPeer, ClientLocals: c.total.ClientLocals,
		ClientCongestion: c.total.ClientCongestion, ServerCongestion: c.total.ServerCongestion,
	}
	return c, nil
}

// greet announces all flows to the server and returns its answers.
func (r *clientRun) greet(w workload) ([]load.Served, error) {
	reports := make([]load.Served, len(r.sessions))
	for i, s := range r.sessions {
		var err error
		if w.network() == "udp" {
			reports[i], err = s.greetUDP(encodeHeader(w, s))
		} else {
			err = s.sendHeader(w)
		}
		if err != nil {
			return nil, err
		}
	}
	for i, s := range r.sessions {
		if w.network() == "udp" {
			break
		}
		var err error
		if reports[i], err = s.readReport(); err != nil {
			return nil, err
		}
	}
	reports[0].Flows = len(r.sessions)
	return reports, nil
}

// help starts the thread of a flow.
func (c *standingConn) help(f flow) {
	h := helper{bursts: make(chan burst), done: make(chan outcome)}
	c.helpers = append(c.helpers, h)
	go func() {
		err := c.run.thread.run(func() error {
			for b := range h.bursts {
				t, err := f.carry(b)
				if err != nil {
					c.run.interrupt() // or the other flows would wait
				}
				h.done <- outcome{t, err}
			}
			return nil
		})
		for range h.bursts { // the thread could not be set up
			h.done <- outcome{err: err}
		}
	}()
}

// slice carries load for one slice and returns what was counted.
func (c *standingConn) slice(s load.Slice, machine *clock.Machine) (r load.SliceResult, err error) {
	if c.err != nil {
		return load.SliceResult{}, c.err
	}
	defer func() {
		if err != nil {
			c.err = err
			c.run.interrupt()
		}
	}()
	before := c.retransmits()
	if lead := s.LeadTime(); lead > 0 {
		if _, err := c.carry(lead, false); err != nil {
			return load.SliceResult{}, err
		}
	}
	if err := machine.Begin(); err != nil {
		return load.SliceResult{}, err
	}
	cpu := clock.ProcessCPU()
	t, err := c.carry(s.Duration, true)
	if err != nil {
		return load.SliceResult{}, err
	}
	c.total.ClientCPUSeconds += (clock.ProcessCPU() - cpu).Seconds()
	if r.Machine, err = machine.End(); err != nil {
		return load.SliceResult{}, err
	}
	for _, f := range c.flows {
		if err := f.rest(); err != nil {
			return load.SliceResult{}, err
		}
	}
	r.Count, r.Seconds, r.Retransmits = t.count, t.elapsed.Seconds(), c.retransmits()-before
	r.Sent, r.Received, r.Overflowed, r.OutOfOrder = t.sent, t.received, t.overflowed, t.outOfOrder
	r.LatencySeconds = t.latency.Seconds()
	c.total.AddSlice(r)
	return r, nil
}

// carry carries load for a time on all flows side by side.
func (c *standingConn) carry(length time.Duration, counted bool) (tally, error) {
	b := burst{time.Now(), length, counted}
	for _, h := range c.helpers {
		h.bursts <- b
	}
	t, err := c.flows[0].carry(b)
	if err != nil {
		c.run.interrupt()
	}
	for _, h := range c.helpers {
		o := <-h.done
		t.add(o.tally)
		if o.err != nil && (err == nil || errors.Is(err, errCancelled)) {
			err = o.err
		}
	}
	return t, err
}

// retransmits returns the segments that all flows retransmitted.
func (c *standingConn) retransmits() (n uint32) {
	for _, s := range c.run.sessions {
		n += socket.Retransmits(s.fd)
	}
	return n
}

// finish ends the connection with the server and returns the measurement of its life.
func (c *standingConn) finish() (load.Measurement, error) {
	if c.err != nil {
		return load.Measurement{}, c.err
	}
	m := &c.total
	m.Retransmits = c.retransmits()
	var served uint64
	for _, f := range c.flows {
		report, err := f.end()
		if err != nil {
			return load.Measurement{}, err
		}
		served += report.Count
		// The CPU time of the one process.
		m.ServerCPUSeconds = max(m.ServerCPUSeconds, report.CPUSeconds)
	}
	// Datagrams and their answers may come after the end of their slice, or not at all, and so
	// may the responses of connections that are lost.
	lossy := m.Workload == load.UDPRR || m.Workload == load.UDPStream || m.Workload == load.TCPCRR
	if served < m.Count || served > m.Count && !lossy {
		return load.Measurement{}, fmt.Errorf("client counts %d, server %d", m.Count, served)
	}
	m.SetRate()
	return *m, nil
}

// close closes the sockets and ends the threads.
func (c *standingConn) close() {
	for _, h := range c.helpers {
		close(h.bursts)
	}
	c.run.close()
	for _, closer := range c.closers {
		_ = closer.Close()
	}
}
