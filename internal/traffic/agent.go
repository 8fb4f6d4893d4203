// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Agent is a running agent process, seen from its parent. Its methods may be
// called from several goroutines.
type Agent struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.ReadCloser
	out    *lineWriter
	stderr tail
	exited chan struct{} // closed when the process is reaped

	mu      sync.Mutex
	nextID  uint64
	pending map[uint64]chan reply
	gone    error // why there are no more replies
	address netip.AddrPort
}

// expect registers a waiter for the reply with an ID. The channel is closed
// without one when the agent is gone.
func (a *Agent) expect(id uint64) chan reply {
	ch := make(chan reply, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone != nil {
		close(ch)
		return ch
	}
	a.pending[id] = ch
	return ch
}

// receive hands out replies until there are no more, then reaps the process.
func (a *Agent) receive() {
	decoder := json.NewDecoder(a.stdout)
	var err error
	for {
		var r reply
		if err = decoder.Decode(&r); err != nil {
			break
		}
		a.mu.Lock()
		ch := a.pending[r.ID]
		delete(a.pending, r.ID)
		a.mu.Unlock()
		if ch != nil {
			ch <- r
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		err = errors.New("ended")
	case errors.Is(err, os.ErrClosed):
		err = errors.New("closed")
	default: // not an agent: it may well go on running
		_ = a.cmd.Process.Kill()
		err = fmt.Errorf("reply: %w", err)
	}
	waitErr := a.cmd.Wait()
	if waitErr != nil {
		err = fmt.Errorf("%w (%w)", err, waitErr)
	}
	if text := strings.TrimSpace(a.stderr.String()); text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	a.mu.Lock()
	a.gone = err
	for _, ch := range a.pending {
		close(ch)
	}
	clear(a.pending)
	a.mu.Unlock()
	close(a.exited)
}

// reason says why the agent is gone.
func (a *Agent) reason() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gone
}

// call sends a command and waits for its reply. When ctx ends first, the agent
// is told to stop; one that does not within a second is killed.
func (a *Agent) call(ctx context.Context, c command) (reply, error) {
	if err := ctx.Err(); err != nil {
		return reply{}, fmt.Errorf("traffic agent: %s: %w", c.Op, err)
	}
	a.mu.Lock()
	a.nextID++
	c.ID = a.nextID
	a.mu.Unlock()
	ch := a.expect(c.ID)
	if err := a.out.write(c); err != nil {
		// The agent's end tells more than a broken pipe.
		<-a.exited
		return reply{}, fmt.Errorf("traffic agent: %s: %w", c.Op, a.reason())
	}
	cancelled := false
	var r reply
	var ok bool
	select {
	case r, ok = <-ch:
	case <-ctx.Done():
		cancelled = true
		r, ok = a.cancel(c.ID, ch)
	}
	switch {
	case cancelled && (!ok || r.Error != nil):
		return reply{}, fmt.Errorf("traffic agent: %s: %w", c.Op, ctx.Err())
	case !ok:
		return reply{}, fmt.Errorf("traffic agent: %s: %w", c.Op, a.reason())
	case r.Error != nil:
		return reply{}, &RemoteError{Op: c.Op, Message: r.Error.Message, Errno: r.Error.Errno}
	}
	return r, nil
}

// cancel asks the agent to stop a command and waits for the reply.
func (a *Agent) cancel(id uint64, ch chan reply) (reply, bool) {
	_ = a.out.write(command{Op: opCancel, Cancel: id})
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case r, ok := <-ch:
		return r, ok
	case <-timer.C:
		_ = a.cmd.Process.Kill()
		r, ok := <-ch
		return r, ok
	}
}

// Listen makes the agent a server on addr; port 0 asks for any, see
// [Agent.Address]. It serves every workload on that port until Close. An agent
// may listen on several addresses.
func (a *Agent) Listen(ctx context.Context, addr netip.AddrPort) error {
	return a.listen(ctx, addr, nil)
}

// listen is Listen for those whom the guard lets in.
func (a *Agent) listen(ctx context.Context, addr netip.AddrPort, g *guard) error {
	r, err := a.call(ctx, command{Op: opListen, Address: addr, Guard: g})
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.address = r.Address
	return nil
}

// Address returns the address of the last Listen, with the port that it got.
func (a *Agent) Address() netip.AddrPort {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.address
}

// Run makes the agent a client for one run and waits for its end. What fails
// in the agent is a [*RemoteError]; when ctx ends, its error comes back.
func (a *Agent) Run(ctx context.Context, spec Spec) (Measurement, error) {
	if err := spec.Validate(); err != nil {
		return Measurement{}, err
	}
	r, err := a.call(ctx, command{Op: opRun, Spec: spec})
	if err != nil {
		return Measurement{}, err
	}
	if r.Measurement == nil {
		return Measurement{}, errors.New("traffic agent: run: reply without a measurement")
	}
	return *r.Measurement, nil
}

// Last returns what the agent, as a server, saw of the last connection that
// ended. It is an error when there was none.
func (a *Agent) Last(ctx context.Context) (Served, error) {
	r, err := a.call(ctx, command{Op: opLast})
	if err != nil {
		return Served{}, err
	}
	if r.Served == nil {
		return Served{}, errors.New("traffic agent: last: nothing was served yet")
	}
	return *r.Served, nil
}

// PID returns the agent's process ID.
func (a *Agent) PID() int { return a.cmd.Process.Pid }

// Close kills the agent and waits until it is reaped. A second call does
// nothing.
func (a *Agent) Close() error {
	_ = a.stdin.Close()
	err := a.cmd.Process.Kill()
	_ = a.stdout.Close() // should a child of it hold the other end
	<-a.exited
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill traffic agent: %w", err)
	}
	return nil
}
