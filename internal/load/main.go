// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// spareThreads is the difference between GOMAXPROCS of an agent and the number of
// threads that carry load: each of these keeps its slot in a raw system call, and the
// command loop needs one beside them.
const spareThreads = 3

// maxLoadThreads bounds the number of threads that GOMAXPROCS is raised for.
const maxLoadThreads = 4 * MaxFlows

// noPreemption in GODEBUG switches the scheduler's signals off, which would interrupt
// the blocking calls every 10 ms.
const noPreemption = "asyncpreemptoff=1"

// withoutPreemption returns an environment with [noPreemption].
func withoutPreemption(env []string) []string {
	value := noPreemption
	if old := os.Getenv("GODEBUG"); old != "" {
		value = old + "," + value
	}
	return append(env, "GODEBUG="+value) // the last one counts
}

// DisablePreemption switches the Go scheduler's signals off. If they are on, it executes
// the program anew with the same arguments and does not return. A shell to another
// machine passes no environment.
func DisablePreemption() error {
	if strings.Contains(os.Getenv("GODEBUG"), noPreemption) {
		return nil
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("load agent: %w", err)
	}
	return fmt.Errorf("load agent: execute %s: %w", exe, unix.Exec(exe, os.Args, withoutPreemption(os.Environ())))
}

// worker is the state of an agent process.
type worker struct {
	thread threadConfig
	out    *messageWriter

	mu          sync.Mutex
	active      int // runs and connections that carry load
	loadThreads int // threads that carry load
	slots       int // GOMAXPROCS of an agent at rest
	last        *Served
	listeners   []io.Closer
	flows       map[uint64]bool // UDP flows that are being served
	runs        map[uint64]*serverRun
	cancels     map[uint64]context.CancelFunc
	tasks       sync.WaitGroup
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
	flags := flag.NewFlagSet(Command, flag.ContinueOnError)
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
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{
		thread: threadConfig{*cpu, *priority}, out: newMessageWriter(stdout),
		cancels: map[uint64]context.CancelFunc{}, flows: map[uint64]bool{}, runs: map[uint64]*serverRun{},
		slots: runtime.GOMAXPROCS(0),
	}
	defer func() {
		cancel()
		w.closeListeners()
		w.tasks.Wait()
	}()
	if err := w.out.write(reply{Hello: &hello{Protocol: protocolVersion, Version: programVersion()}}); err != nil {
		return fmt.Errorf("load agent: say hello: %w", err)
	}
	if err := w.loop(ctx, stdin, *idle); err != nil {
		return fmt.Errorf("load agent: %w", err)
	}
	return nil
}

// programVersion returns the version of this program.
func programVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

// loop executes commands until the input ends.
func (w *worker) loop(ctx context.Context, stdin io.Reader, idle time.Duration) error {
	commands := make(chan command)
	ended := make(chan error, 1)
	go func() {
		// Stays in a read if ctx ends first; the process then ends.
		messages := newMessageReader(stdin, maxCommand)
		for {
			var c command
			if err := messages.read(&c); err != nil {
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
func (w *worker) execute(ctx context.Context, c command) error {
	r := reply{ID: c.ID}
	switch c.Op {
	case opPing:
		return nil
	case opListen:
		addr, err := w.listen(ctx, c.Address)
		r.Address, r.Error = addr, newWireError(err)
	case opLast:
		w.mu.Lock()
		r.Served = w.last
		w.mu.Unlock()
	case opRun:
		runCtx, cancel := context.WithCancel(ctx)
		w.mu.Lock()
		w.cancels[c.ID] = cancel
		w.mu.Unlock()
		w.tasks.Go(func() { w.run(runCtx, c) })
		return nil
	case opCancel:
		w.mu.Lock()
		if cancel := w.cancels[c.Cancel]; cancel != nil {
			cancel()
		}
		w.mu.Unlock()
		return nil // the run itself replies
	default:
		r.Error = &wireError{Message: fmt.Sprintf("unknown command %q", c.Op)}
	}
	return w.out.write(r)
}

// run runs a client and replies with its measurement.
func (w *worker) run(ctx context.Context, c command) {
	m, err := w.client(ctx, c.Spec)
	w.mu.Lock()
	w.cancels[c.ID]()
	delete(w.cancels, c.ID)
	w.mu.Unlock()
	r := reply{ID: c.ID, Error: newWireError(err)}
	if err == nil {
		r.Measurement = &m
	}
	_ = w.out.write(r) // if it fails, the parent is gone and stdin ends
}

// setLast keeps the figures for [Agent.Last].
func (w *worker) setLast(r Served) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = &r
}

// begin notes the beginning of a run or of a connection. While one is open, no garbage
// is collected.
func (w *worker) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active++
}

// end notes its end, and collects garbage after the last one.
func (w *worker) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active--
	if w.active > 0 {
		return
	}
	if runtime.GOMAXPROCS(0) > w.slots {
		runtime.GOMAXPROCS(w.slots)
	}
	runtime.GC()
}

// addThreads raises GOMAXPROCS for more threads that carry load; a negative number takes
// them back. The caller holds the lock. It is called for all flows of a run before the
// first one moves data: the runtime has to stop all threads for it, which takes a while
// for those in a system call.
func (w *worker) addThreads(n int) {
	w.loadThreads += n
	if need := min(w.loadThreads, maxLoadThreads) + spareThreads; need > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(need)
	}
}
