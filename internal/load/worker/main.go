// SPDX-License-Identifier: Apache-2.0

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

	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/version"
)

// spareThreads is the difference between an agent's GOMAXPROCS and its number of threads that carry load. Each of
// these threads keeps its slot in a raw system call, and the command loop needs a slot too.
const spareThreads = 3

// worker is the state of an agent process.
type worker struct {
	thread threadConfig
	out    *load.MessageWriter

	mu        sync.Mutex
	active    int // connections that are open
	slots     int // GOMAXPROCS of an idle agent
	listeners []*session
	conns     map[uint64]*connection
	lastConn  uint64 // the last ID
	windows   map[bool]*clock.Window
	flows     sync.Map // numbers of the UDP flows that are being served
	tasks     sync.WaitGroup
	turn      sync.RWMutex // held for slices, and read by commands that shut connections
	sliced    int          // slices since the last collection of garbage; guarded by turn
}

// Main is the main function of an agent. It executes one JSON command per line of stdin,
// replies with JSON lines on stdout, and returns when stdin or ctx ends, with all its
// connections closed. The arguments --cpu=N and --priority=N pin the process and make
// the threads that carry load real-time ones. With --idle=DURATION it returns an error
// when no command came for this time. The caller should exit when Main returns.
//
// The garbage collector is off in the process while Main runs. Main runs it when no
// connection is open.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet(load.Command, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	cpu := flags.Int("cpu", -1, "CPU to run on, -1 for any")
	priority := flags.Int("priority", 0, "real-time priority of the threads that carry load, 0 for none")
	idle := flags.Duration("idle", 0, "end when no command comes for this time, 0 for never")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("load agent: %w", err)
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("load agent: unexpected argument %q", flags.Arg(0))
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 1+spareThreads)))
	if err := pinProcess(*cpu); err != nil {
		return fmt.Errorf("load agent: %w", err)
	}
	relaxRuntime()
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{
		thread: threadConfig{CPU: *cpu, Priority: *priority}, out: load.NewMessageWriter(stdout),
		conns: map[uint64]*connection{}, windows: map[bool]*clock.Window{}, slots: runtime.GOMAXPROCS(0),
	}
	defer func() {
		cancel()
		w.closeListeners()
		w.tasks.Wait()
		w.closeAll()
	}()
	if err := w.out.Write(load.Reply{Hello: &load.Hello{Protocol: load.Protocol,
		Version: version.Program()}}); err != nil {
		return fmt.Errorf("load agent: say hello: %w", err)
	}
	if err := w.loop(ctx, stdin, *idle); err != nil {
		return fmt.Errorf("load agent: %w", err)
	}
	return nil
}

func (w *worker) loop(ctx context.Context, stdin io.Reader, idle time.Duration) error {
	commands := make(chan load.Call)
	ended := make(chan error, 1)
	go func() {
		// Stays in a read if ctx ends first; the process then ends.
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
			if err := w.execute(ctx, c); err != nil {
				return fmt.Errorf("reply: %w", err)
			}
		}
	}
}

// execute executes a command or starts it. It returns an error only if it cannot write
// the reply.
func (w *worker) execute(ctx context.Context, c load.Call) error {
	r := load.Reply{ID: c.ID}
	switch c.Op {
	case load.OpPing:
		if c.ID == 0 {
			return nil
		}
	case load.OpListen:
		addr, err := w.listen(ctx, c.Namespace, c.Address)
		r.Address, r.Error = addr, replyError(err)
	case load.OpOpen, load.OpSlices, load.OpShut: // which may take a while
		w.tasks.Go(func() { _ = w.out.Write(w.run(ctx, c)) }) // if it fails, the parent is gone and stdin ends
		return nil
	default:
		r.Error = &load.ReplyError{Message: fmt.Sprintf("unknown command %q", c.Op)}
	}
	return w.out.Write(r)
}

// run executes a client's command.
func (w *worker) run(ctx context.Context, c load.Call) load.Reply {
	r := load.Reply{ID: c.ID}
	var err error
	switch c.Op {
	case load.OpOpen:
		r.Conn, err = w.open(ctx, c.Spec)
	case load.OpSlices:
		r.Slices, err = w.slices(ctx, c.Slices)
	default:
		if r.Measurement, err = w.shut(ctx, c.Conn); err == nil {
			r.Histogram = load.Histogram{Histogram: r.Measurement.Histogram}
		}
	}
	if err != nil {
		r = load.Reply{ID: c.ID, Error: replyError(err)}
	}
	return r
}

func replyError(err error) *load.ReplyError {
	if err == nil {
		return nil
	}
	w := &load.ReplyError{Message: err.Error()}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		w.Errno = unix.ETIMEDOUT
	}
	errors.As(err, &w.Errno)
	return w
}
