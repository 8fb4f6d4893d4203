// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/load/socket"
	"mustang/internal/netns"
)

// client opens the flows of a spec and runs its workload over them.
func (w *worker) client(ctx context.Context, spec load.Spec) (m load.Measurement, err error) {
	if err := spec.Validate(); err != nil {
		return load.Measurement{}, err
	}
	workload, err := lookup(spec.Workload)
	if err != nil {
		return load.Measurement{}, err
	}
	w.begin()
	defer w.end()
	w.mu.Lock()
	w.addThreads(spec.FlowCount())
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.addThreads(-spec.FlowCount())
	}()
	defer func() {
		if err != nil {
			err = runError(ctx, spec, err)
		}
	}()
	if spec.OneSlice() {
		return w.oneSlice(ctx, spec)
	}
	r, err := openRun(ctx, workload, spec)
	if err != nil {
		return load.Measurement{}, err
	}
	defer r.close()
	r.thread = w.thread
	defer context.AfterFunc(ctx, r.interrupt)()
	return workload.drive(r)
}

// clientRun is the client's state of one run. Each flow has a thread of its own, all of
// them on the agent's CPU.
type clientRun struct {
	spec     load.Spec
	thread   threadConfig
	sessions []*session // of the flows
	barrier  *startBarrier
	// left is the number of bytes that a TCP stream with a limit has not sent yet. The
	// flows take from it, and so end together.
	left atomic.Int64
	// sending is the number of flows that are not done with sending.
	sending atomic.Int32

	mu  sync.Mutex
	err error // of the first flow that failed
}

// flowID identifies a flow of a run.
type flowID struct {
	run   uint64 // drawn at random for each run
	index int
}

// openRun opens the client's sockets of all flows.
func openRun(ctx context.Context, w workload, spec load.Spec) (*clientRun, error) {
	r := &clientRun{spec: spec, barrier: newStartBarrier(spec.FlowCount())}
	r.left.Store(int64(spec.Limit))
	r.sending.Store(int32(spec.FlowCount()))
	run := rand.Uint64()
	for i := range spec.FlowCount() {
		var s *session
		err := inNamespace(spec.Namespace, func() (err error) {
			s, err = dial(ctx, w, spec)
			return err
		})
		if err != nil {
			r.close()
			return nil, err
		}
		s.id = flowID{run: run, index: i}
		r.sessions = append(r.sessions, s)
	}
	return r, nil
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

// dial opens the client's socket of one flow.
func dial(ctx context.Context, w workload, spec load.Spec) (*session, error) {
	if w.network() == "udp" {
		return dialUDP(spec)
	}
	return dialTCP(ctx, spec)
}

// dialTCP opens a TCP connection.
func dialTCP(ctx context.Context, spec load.Spec) (*session, error) {
	dialer := net.Dialer{Timeout: spec.StallTime(), KeepAlive: -1, Control: socket.WithCongestion(spec.Congestion)}
	dialer.SetMultipathTCP(false)
	conn, err := dialFrom(ctx, dialer, spec)
	if err != nil {
		var netErr net.Error
		if errors.As(err, &netErr) && netErr.Timeout() {
			return nil, fmt.Errorf("connect: no answer for %v: %w", spec.StallTime().Round(time.Millisecond), unix.ETIMEDOUT)
		}
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("connect: %w", os.ErrInvalid)
	}
	s, err := newSession(tcp, spec)
	if err != nil {
		return nil, err
	}
	if err := s.useCongestion(spec.Congestion); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// Local ports of standing connections, below those that the kernel gives to others in a
// lab: a short connection by another address of the same server, which is translated on
// the way, must not look like a standing one to the server.
const (
	firstOwnPort = 2000
	ownPorts     = 8000
)

// dialFrom opens a TCP connection, one that stands from a local port of its own.
func dialFrom(ctx context.Context, dialer net.Dialer, spec load.Spec) (conn net.Conn, err error) {
	if !spec.Standing {
		return dialer.DialContext(ctx, "tcp", spec.Target.String())
	}
	for range 100 {
		dialer.LocalAddr = &net.TCPAddr{Port: firstOwnPort + rand.IntN(ownPorts)}
		conn, err = dialer.DialContext(ctx, "tcp", spec.Target.String())
		if !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			break
		}
	}
	return conn, err
}

// sendHeader announces the run to the server. Over UDP it waits for the answer.
func (s *session) sendHeader(w workload) error {
	b := encodeHeader(w, s)
	if w.network() == "udp" {
		_, err := s.greetUDP(b)
		return err
	}
	_, err := s.Write(b)
	return err
}

// each runs a function for every flow on a thread of its own and waits for all. The
// first error interrupts the other flows.
func (r *clientRun) each(fn func(i int, s *session) error) error {
	var threads sync.WaitGroup
	for i, s := range r.sessions {
		threads.Go(func() {
			if err := r.thread.run(func() error { return fn(i, s) }); err != nil {
				r.fail(s, err)
			}
		})
	}
	threads.Wait()
	return r.err
}

// fail keeps the error of a flow, if it is the first one, and interrupts the others.
func (r *clientRun) fail(failed *session, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return
	}
	r.err = err
	r.barrier.cancel()
	for _, s := range r.sessions {
		if s != failed {
			s.interrupt()
		}
	}
}

// take takes up to n of the bytes that are left to send. It returns 0 if none is left.
func (r *clientRun) take(n int64) int64 {
	left := r.left.Add(-n) + n
	return max(min(left, n), 0)
}

// doneSending notes that a flow has sent everything. It reports whether it is the last.
func (r *clientRun) doneSending() bool { return r.sending.Add(-1) == 0 }

// interrupt ends all flows from another goroutine.
func (r *clientRun) interrupt() {
	r.barrier.cancel()
	for _, s := range r.sessions {
		s.interrupt()
	}
}

// close closes all flows.
func (r *clientRun) close() {
	for _, s := range r.sessions {
		s.close()
	}
}

// measurement starts a measurement from the reports of the flows. The server's last
// report has the figures of all flows. Addresses are those of the first flow.
func (r *clientRun) measurement(reports []load.Served) (load.Measurement, error) {
	first, s := reports[0], r.sessions[0]
	all := slices.MaxFunc(reports, func(a, b load.Served) int { return a.Flows - b.Flows })
	if all.Flows != len(r.sessions) {
		return load.Measurement{}, fmt.Errorf("server reports figures of %d flows, want %d", all.Flows, len(r.sessions))
	}
	m := load.Measurement{
		Workload:         r.spec.Workload,
		Flows:            len(r.sessions),
		Count:            all.Count,
		Seconds:          all.Seconds,
		Machine:          all.Machine,
		Received:         all.Received,
		Overflowed:       all.Overflowed,
		OutOfOrder:       all.OutOfOrder,
		ServerCPUSeconds: all.CPUSeconds,
		ClientLocal:      s.local,
		ClientPeer:       s.peer,
		ServerLocal:      first.Local,
		ServerPeer:       first.Peer,
		ClientCongestion: s.congestion,
		ServerCongestion: first.Congestion,
		Window:           r.spec.Window,
		Reverse:          r.spec.Reverse,
	}
	for _, s := range r.sessions {
		m.ClientLocals = append(m.ClientLocals, s.local)
		m.Retransmits += socket.Retransmits(s.fd)
	}
	return m, nil
}

// share returns a flow's share of a total.
func share(total uint64, index, flows int) uint64 {
	n := uint64(flows)
	part := total / n
	if uint64(index) < total%n {
		part++
	}
	return part
}

// startBarrier holds the flows of a run until all have arrived, and releases them at
// the same moment.
type startBarrier struct {
	mu        sync.Mutex
	flows     int
	arrived   int
	start     time.Time
	err       error
	released  chan struct{}
	cancelled chan struct{}
	once      sync.Once // closes cancelled
}

func newStartBarrier(flows int) *startBarrier {
	return &startBarrier{flows: flows, released: make(chan struct{}), cancelled: make(chan struct{})}
}

// cancel ends all waits, now and later.
func (b *startBarrier) cancel() { b.once.Do(func() { close(b.cancelled) }) }

// wait waits for the other flows. The last one to arrive calls begin, unless it is nil.
// All flows return the same start time, after it has passed. A single flow never waits.
func (b *startBarrier) wait(begin func() error) (time.Time, error) {
	b.mu.Lock()
	b.arrived++
	if b.arrived == b.flows {
		if begin != nil {
			b.err = begin()
		}
		b.start = time.Now().Add(b.wakeTime())
		close(b.released)
	}
	b.mu.Unlock()
	select {
	case <-b.released:
	case <-b.cancelled:
		return time.Time{}, errCancelled
	}
	if b.flows > 1 {
		sleepUntil(b.start)
	}
	return b.start, b.err
}

// wakeTime is the time until all flows have noticed the release. No flow carries load
// yet that would delay the others.
func (b *startBarrier) wakeTime() time.Duration {
	if b.flows == 1 {
		return 0
	}
	return time.Millisecond + time.Duration(b.flows)*50*time.Microsecond
}
