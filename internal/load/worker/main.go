// SPDX-License-Identifier: Apache-2.0

// Package worker is the process of a load agent: it carries load over sockets as its parent, package load, commands.
//
// The client's monotonic clock bounds a slice; of a UDP stream the longer window of both ends counts. Each flow of a
// stream has a thread of its own on the agent's CPU. Sockets block and are driven by raw system calls on these threads.
// The hot loops do not allocate. The garbage collector is off while a connection is open, the scheduler's signals are
// off, and the threads of the Go runtime wake late, at ticks that come anyway. UDP needs no control connection: client
// and server agree in datagrams of the stream's addresses and ports, so that all of a connection through a translated
// address is translated.
//
// When a slice ends, nothing of it is in flight. A request/response waits for its last response. A TCP stream starts
// and ends with an empty connection: the server answers the last block of the lead, and of the slice. So all work for
// the counted bytes is in the time, if both ends share a CPU too. A UDP stream ends with the server's counts.
//
// Between slices neither end sends, and no timer wakes their threads; only a TCP connection that was idle for
// a minute is probed. Sockets have timeouts, so that a slice whose peer dies or vanishes ends with an error.
package worker

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/netns"
	"mustang/internal/version"
)

// spareThreads is the difference between an agent's GOMAXPROCS and its number of threads that carry load. Each of
// these threads keeps its slot in a raw system call, and the command loop needs a slot too.
const spareThreads = 3

type worker struct {
	thread     threadConfig
	congestion string // congestion control of TCP connections; empty: the kernel's default
	out        *load.MessageWriter

	listeners  []*session
	namespaces []*netns.Namespace // of listeners
	flows      sync.Map           // numbers of the UDP flows that are being served
	tasks      sync.WaitGroup
	turn       sync.RWMutex // locked while slices run; read-locked by commands that shut connections
	sliced     int          // slices since the last collection of garbage; guarded by turn

	mu       sync.Mutex
	active   int // connections that are open
	slots    int // GOMAXPROCS of an idle agent
	conns    map[uint64]*connection
	lastConn uint64 // the last ID
}

// Main is the main function of an agent. It executes one JSON command per line of stdin, replies with JSON lines on
// stdout, and returns when stdin or ctx ends, with all its connections closed. The arguments --cpu=N and --priority=N
// pin the process and make the threads that carry load real-time ones. Connections have the congestion control of
// --congestion=NAME. With --idle=DURATION it returns an error when no command came for this time. The garbage collector
// is off in the process, and runs when no connection is open.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if err := run(ctx, args, stdin, stdout); err != nil {
		return fmt.Errorf("load agent: %w", err)
	}
	return nil
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet(load.Command, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	cpu := flags.Int("cpu", -1, "CPU to run on, -1 for any")
	priority := flags.Int("priority", 0, "real-time priority of the threads that carry load, 0 for none")
	congestion := flags.String("congestion", "", "congestion control of TCP connections, if the kernel has it")
	idle := flags.Duration("idle", 0, "end when no command comes for this time, 0 for never")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 1+spareThreads)))
	if err := prepareProcess(*cpu); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{
		thread: threadConfig{CPU: *cpu, Priority: *priority}, congestion: *congestion, out: load.NewMessageWriter(stdout),
		conns: map[uint64]*connection{}, slots: runtime.GOMAXPROCS(0),
	}
	defer w.close()
	defer cancel()
	hello := load.Hello{Protocol: load.Protocol, Version: version.Program()}
	if err := w.out.Write(load.Reply{Hello: &hello}); err != nil {
		return fmt.Errorf("say hello: %w", err)
	}
	return w.loop(ctx, stdin, *idle)
}

func (w *worker) loop(ctx context.Context, stdin io.Reader, idle time.Duration) error {
	commands := make(chan load.Call)
	ended := make(chan error, 1)
	go func() { // stays in a read if ctx ends first; the process then ends
		messages := load.NewMessageReader(stdin, load.MaxCall)
		for {
			var c load.Call
			if err := messages.Read(&c); err != nil {
				ended <- err
				return
			}
			select {
			case commands <- c:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		var silent <-chan time.Time
		if idle > 0 {
			silent = time.After(idle)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-silent:
			return fmt.Errorf("no command for %v", idle)
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("read command: %w", err)
		case c := <-commands:
			if c.Op == load.OpListen || c.Op == load.OpPing {
				w.execute(ctx, c)
			} else { // may take a while
				w.tasks.Go(func() { w.execute(ctx, c) })
			}
		}
	}
}

// execute executes a command. If its reply cannot be written, the parent is gone, and stdin ends.
func (w *worker) execute(ctx context.Context, c load.Call) {
	r := load.Reply{ID: c.ID}
	var err error
	switch c.Op {
	case load.OpPing:
		if c.ID == 0 {
			return
		}
	case load.OpListen:
		r.Address, err = w.listen(ctx, c.Namespace, c.Address)
	case load.OpOpen:
		r.Conn, err = w.open(ctx, c.Spec)
	case load.OpSlices:
		r.Slices, err = w.slices(ctx, c.Slices)
	case load.OpShut:
		if r.Measurement, err = w.shut(ctx, c.Conn); err == nil && r.Measurement.Histogram != nil {
			r.Histogram, err = r.Measurement.Histogram.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
		}
	default:
		err = fmt.Errorf("unknown command %q", c.Op)
	}
	if err != nil {
		r = load.Reply{ID: c.ID, Error: &load.RemoteError{Message: err.Error()}}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			r.Error.Errno = unix.ETIMEDOUT
		}
		errors.As(err, &r.Error.Errno)
	}
	_ = w.out.Write(r)
}

// close closes all listeners and connections when no more commands come.
func (w *worker) close() {
	for _, s := range w.listeners {
		s.interrupt()
	}
	w.tasks.Wait()
	for _, namespace := range w.namespaces {
		_ = namespace.Close()
	}
	for _, c := range w.conns {
		c.interrupt()
		c.close()
		w.end()
	}
}

// begin notes that a connection of some flows begins. While one is open, garbage is collected between slices alone.
// GOMAXPROCS is raised so that one connection can carry load; other connections are idle then, outside the Go
// scheduler. This must precede the first transfer of a flow: the runtime stops all threads for it, which takes long
// for threads in a system call.
func (w *worker) begin(flows int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active++
	if flows += spareThreads; flows > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(flows)
	}
}

func (w *worker) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active--; w.active > 0 {
		return
	}
	if runtime.GOMAXPROCS(0) > w.slots {
		runtime.GOMAXPROCS(w.slots)
	}
	runtime.GC()
}

func (w *worker) open(ctx context.Context, spec load.Spec) (load.Conn, error) {
	if err := spec.Validate(); err != nil {
		return load.Conn{}, err
	}
	w.begin(spec.FlowCount())
	c, err := w.openPersistent(ctx, spec)
	if err != nil {
		w.end()
		return load.Conn{}, runError(ctx, spec, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastConn++
	w.conns[w.lastConn] = c
	return load.Conn{ID: w.lastConn}, nil
}

func (w *worker) connection(id uint64) (*connection, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.conns[id]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("no connection %d", id)
}

// mostSlices is the number of slices after which garbage is collected: their results take tens of megabytes.
const mostSlices = 1 << 16

func (w *worker) slices(ctx context.Context, slices []load.Slice) ([]load.SliceResult, error) {
	w.turn.Lock()
	defer w.turn.Unlock()
	conns := make([]*connection, len(slices))
	for i, s := range slices {
		var err error
		if conns[i], err = w.connection(s.Conn); err != nil {
			return nil, err
		}
	}
	defer context.AfterFunc(ctx, func() {
		for _, c := range conns {
			c.interrupt()
		}
	})()
	results := make([]load.SliceResult, len(slices))
	err := w.thread.run(func() (err error) {
		for i, s := range slices {
			if ctx.Err() != nil {
				return errCancelled
			}
			if results[i], err = conns[i].slice(s); err != nil {
				return runError(ctx, conns[i].spec, fmt.Errorf("slice %d: %w", i, err))
			}
		}
		return nil
	})
	if w.sliced += len(slices); w.sliced > mostSlices {
		w.sliced = 0
		runtime.GC()
	}
	return results, err
}

func (w *worker) shut(ctx context.Context, id uint64) (m load.Measurement, err error) {
	w.turn.RLock()
	defer w.turn.RUnlock()
	c, err := w.connection(id)
	if err != nil {
		return m, err
	}
	w.mu.Lock()
	delete(w.conns, id)
	w.mu.Unlock()
	defer w.end()
	defer c.close()
	defer context.AfterFunc(ctx, c.interrupt)()
	if err := c.finish(); err != nil {
		return m, runError(ctx, c.spec, err)
	}
	return c.total, nil
}

// runError adds the traffic that an error ended; it returns errCancelled if ctx ended it.
func runError(ctx context.Context, spec load.Spec, err error) error {
	if ctx.Err() != nil || errors.Is(err, errCancelled) {
		return errCancelled
	}
	return fmt.Errorf("%s to %s: %w", spec.Workload, spec.Target, err)
}

// workload is one kind of traffic, in a file of its own.
type workload struct {
	kind int                                       // unix.SOCK_STREAM or unix.SOCK_DGRAM
	open func(*connection, *session) (flow, error) // the client's part of one flow, after the handshake
	// serve is the server's part of one flow: it welcomes the client, and counts in the session until the client ends it.
	serve func(*session) error
}

func lookup(name string) workload {
	return map[string]workload{
		load.TCPStream: {unix.SOCK_STREAM, openBlocks, serveBlocks},
		load.TCPRR:     {unix.SOCK_STREAM, openRequester, serveRequests},
		load.TCPCRR:    {unix.SOCK_STREAM, openConnector, serveSlot},
		load.UDPStream: {unix.SOCK_DGRAM, openDatagrams, serveDatagrams},
		load.UDPRR:     {unix.SOCK_DGRAM, openDatagramRequester, serveDatagrams},
	}[name]
}
