// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"sync"
)

// spareThreads is how much greater GOMAXPROCS of an agent is than the number of
// threads that carry load: each keeps its slot in a raw system call, and the
// command loop needs one beside them.
const spareThreads = 3

// maxSeated is for how many threads that carry load there is room at most.
const maxSeated = 4 * MaxFlows

// worker is the state of an agent process.
type worker struct {
	seat seat
	out  *lineWriter

	mu        sync.Mutex
	active    int // runs and connections that carry load
	inside    int // connections of clients, TCP and UDP
	seated    int // threads that carry load
	slots     int // GOMAXPROCS of an agent at rest
	last      *Served
	listeners []io.Closer
	flows     map[uint64]bool // UDP flows that are being served
	groups    map[uint64]*group
	cancels   map[uint64]context.CancelFunc
	tasks     sync.WaitGroup
}

// Main is an agent's whole life: it obeys one JSON command per line of stdin,
// answers with one JSON line each on stdout, and returns when stdin ends or ctx
// does, with all its connections closed. Its arguments: --cpu=N pins
// the process to a CPU, --priority=N makes the threads that carry load real-time
// ones. The caller should exit the process when Main returns.
//
// The garbage collector is off in the process as long as Main runs; it is run
// by hand when no connection is open.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet("traffic-agent", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	cpu := flags.Int("cpu", -1, "CPU to run on, -1 for any")
	priority := flags.Int("priority", 0, "real-time priority of the threads that carry load, 0 for none")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("traffic agent: %w", err)
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("traffic agent: unexpected argument %q", flags.Arg(0))
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 1+spareThreads)))
	if err := pinProcess(*cpu); err != nil {
		return fmt.Errorf("traffic agent: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{
		seat: seat{*cpu, *priority}, out: newLineWriter(stdout),
		cancels: map[uint64]context.CancelFunc{}, flows: map[uint64]bool{}, groups: map[uint64]*group{},
		slots: runtime.GOMAXPROCS(0),
	}
	defer func() {
		cancel()
		w.closeListeners()
		w.tasks.Wait()
	}()
	if err := w.out.write(reply{}); err != nil {
		return fmt.Errorf("traffic agent: say ready: %w", err)
	}
	return w.loop(ctx, stdin)
}

// loop obeys commands until there are no more.
func (w *worker) loop(ctx context.Context, stdin io.Reader) error {
	commands := make(chan command)
	ended := make(chan error, 1)
	go func() {
		// Stays behind in a read when ctx ends first; the process is over then.
		decoder := json.NewDecoder(stdin)
		for {
			var c command
			if err := decoder.Decode(&c); err != nil {
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
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("traffic agent: read command: %w", err)
		case c := <-commands:
			if err := w.obey(ctx, c); err != nil {
				return fmt.Errorf("traffic agent: reply: %w", err)
			}
		}
	}
}

// obey does a command or starts it. Only a reply that cannot be written is an
// error.
func (w *worker) obey(ctx context.Context, c command) error {
	r := reply{ID: c.ID}
	switch c.Op {
	case opListen:
		addr, err := w.listen(ctx, c.Address, c.Guard)
		r.Address, r.Error = addr, toWire(err)
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
	r := reply{ID: c.ID, Error: toWire(err)}
	if err == nil {
		r.Measurement = &m
	}
	_ = w.out.write(r) // the parent is gone if it fails, and stdin ends then
}

// begin counts a run or a connection in. While one is open, no garbage is
// collected.
func (w *worker) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active++
}

// end counts it out and collects garbage after the last one.
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

// seats makes room for more threads that carry load, or for fewer. The lock is
// held. Room for all flows of a run is made before its first one moves: the
// runtime has to stop all threads for it, and those in a system call take a while.
func (w *worker) seats(more int) {
	w.seated += more
	if need := min(w.seated, maxSeated) + spareThreads; need > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(need)
	}
}
