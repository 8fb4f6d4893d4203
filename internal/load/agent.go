// SPDX-License-Identifier: Apache-2.0

package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	startTimeout = 30 * time.Second // default of AgentOptions.Timeout
	shellGrace   = 5 * time.Second  // between the end of an agent's input behind a shell and a kill
	stopGrace    = time.Second      // the same without a shell
	agentIdle    = time.Minute      // an agent behind a shell ends after this time without a message
	pingInterval = agentIdle / 4
)

// Agent is a running agent process, seen from its parent. Its methods may be called from several goroutines.
type Agent struct {
	cmd     *exec.Cmd
	remote  bool // behind a shell
	timeout time.Duration
	stdin   io.WriteCloser
	stdout  io.ReadCloser
	out     *MessageWriter
	stderr  tail
	exited  chan struct{} // closed when the process is reaped

	mu      sync.Mutex
	nextID  uint64
	pending map[uint64]chan Reply
	ended   error // why no more replies come
	given   error // why it was given up
	address netip.AddrPort
}

// StartAgent starts an agent and waits until it is ready or ctx ends. On error, no process is left.
func StartAgent(ctx context.Context, o AgentOptions) (*Agent, error) {
	a := &Agent{remote: len(o.Shell) > 0, timeout: cmp.Or(o.Timeout, startTimeout), exited: make(chan struct{}),
		pending: map[uint64]chan Reply{}}
	if err := a.start(ctx, o); err != nil {
		return nil, fmt.Errorf("start %s: %w", a, err)
	}
	if a.remote {
		go a.keepAlive()
	}
	return a, nil
}

func (a *Agent) start(ctx context.Context, o AgentOptions) (err error) {
	if a.cmd, err = o.command(); err != nil {
		return err
	}
	a.cmd.Stderr = &a.stderr
	if a.stdin, err = a.cmd.StdinPipe(); err != nil {
		return err
	}
	if a.stdout, err = a.cmd.StdoutPipe(); err != nil {
		return errors.Join(err, a.stdin.Close())
	}
	a.out = NewMessageWriter(a.stdin)
	start := o.Start
	if start == nil {
		start = (*exec.Cmd).Start
	}
	if err := start(a.cmd); err != nil {
		if a.cmd.Process != nil { // started, then something after it went wrong
			_, _ = a.cmd.Process.Kill(), a.cmd.Wait()
		} else {
			_, _ = a.stdin.Close(), a.stdout.Close()
		}
		return err
	}
	ready := a.expect(0)
	go a.receive()
	ctx, cancel := context.WithTimeoutCause(ctx, a.timeout, fmt.Errorf("not ready after %v", a.timeout))
	defer cancel()
	r, err := a.await(ctx, ready)
	if err == nil {
		err = r.checkHello()
	}
	if err != nil {
		_, _ = a.cmd.Process.Kill(), a.Close()
	}
	return err
}

// String names the agent in errors.
func (a *Agent) String() string {
	if a.remote {
		return "load agent of the peer"
	}
	return "load agent"
}

// expect returns the channel of the reply with an ID. It is closed without one when the agent has ended.
func (a *Agent) expect(id uint64) chan Reply {
	ch := make(chan Reply, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pending[id] = ch; a.ended != nil {
		close(ch)
	}
	return ch
}

func (a *Agent) receive() {
	messages := NewMessageReader(a.stdout, maxReply)
	var err error
	for {
		var r Reply
		if err = messages.Read(&r); err != nil {
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
	foreign := false
	switch {
	case errors.Is(err, io.EOF): // no more replies, even if it goes on running
		err = errors.New("ended")
		defer time.AfterFunc(stopGrace, func() { _ = a.cmd.Process.Kill() }).Stop()
	case errors.Is(err, os.ErrClosed):
		err = errors.New("closed")
	default: // not an agent: it may go on running
		foreign = true
		_ = a.cmd.Process.Kill()
	}
	waitErr := a.cmd.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	err = cmp.Or(a.given, err)
	if waitErr != nil && !foreign {
		err = fmt.Errorf("%w (%w)", err, waitErr)
	}
	if text := Printable(string(a.stderr)); text != "" { // no writer is left
		err = fmt.Errorf("%w: %s", err, text)
	}
	a.ended = err
	for _, ch := range a.pending {
		close(ch)
	}
	clear(a.pending)
	close(a.exited)
}

// keepAlive sends a message every pingInterval, to show the agent that this machine has not vanished.
func (a *Agent) keepAlive() {
	ticker := time.NewTicker(pingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-a.exited:
			return
		case <-ticker.C:
			_ = a.out.Write(Call{Op: OpPing}) // the agent's end explains more than a broken pipe
		}
	}
}

func (a *Agent) await(ctx context.Context, replies <-chan Reply) (Reply, error) {
	select {
	case r, ok := <-replies:
		if !ok {
			return r, a.Err()
		}
		return r, nil
	case <-ctx.Done():
		return Reply{}, context.Cause(ctx)
	}
}

// call sends a command and waits for its reply; 0 waits forever. After the limit, call gives up the agent. If ctx
// ends first, the agent still finishes the command, and call ignores the reply.
func (a *Agent) call(ctx context.Context, c Call, within time.Duration) (Reply, error) {
	r, err := a.exchange(ctx, c, within)
	if err != nil {
		return Reply{}, fmt.Errorf("%s: %s: %w", a, c.Op, err)
	}
	if r.Error != nil {
		r.Error.Op, r.Error.Message = c.Op, Printable(r.Error.Message)
		return Reply{}, r.Error
	}
	return r, nil
}

func (a *Agent) exchange(ctx context.Context, c Call, within time.Duration) (Reply, error) {
	if err := ctx.Err(); err != nil {
		return Reply{}, err
	}
	a.mu.Lock()
	a.nextID++
	c.ID = a.nextID
	a.mu.Unlock()
	replies := a.expect(c.ID)
	if a.out.Write(c) != nil {
		_ = a.stop(stopGrace)
		return Reply{}, a.Err() // the agent's end explains more than a broken pipe
	}
	late := fmt.Errorf("no answer after %v", within.Round(100*time.Millisecond))
	if within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, within, late)
		defer cancel()
	}
	r, err := a.await(ctx, replies)
	if errors.Is(err, late) {
		a.mu.Lock()
		a.given = late
		a.mu.Unlock()
		_ = a.stop(0)
		err = a.Err()
	}
	return r, err
}

// carry is call for a command that carries load for some time, or none. A machine that is
// busy with other things takes longer, but not for ever, as an agent that was stopped.
func (a *Agent) carry(ctx context.Context, c Call, load time.Duration) (Reply, error) {
	return a.call(ctx, c, 10*load+3*a.timeout)
}

// Listen makes the agent a server on addr; port 0 selects a free one, see [Agent.Address]. It serves every workload
// on that port until Close. An agent may listen on several addresses.
func (a *Agent) Listen(ctx context.Context, addr netip.AddrPort) error {
	_, err := a.ListenIn(ctx, "", addr)
	return err
}

// ListenIn is Listen in the network namespace at a path, such as /run/netns/x; empty means the agent's own. It returns
// the address with the assigned port.
func (a *Agent) ListenIn(ctx context.Context, namespace string, addr netip.AddrPort) (netip.AddrPort, error) {
	r, err := a.call(ctx, Call{Op: OpListen, Namespace: namespace, Address: addr}, a.timeout)
	if err != nil {
		return netip.AddrPort{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.address = r.Address
	return r.Address, nil
}

// Address returns the address of the last Listen, with the assigned port.
func (a *Agent) Address() netip.AddrPort {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.address
}

// Err returns why the agent has ended, with the end of its standard error; nil while it runs.
func (a *Agent) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended
}

// PID returns the agent's process ID, with a shell the shell's.
func (a *Agent) PID() int { return a.cmd.Process.Pid }

// Close ends the agent and waits until its process is reaped. An agent behind a shell has five seconds to end by
// itself; otherwise its end of the connection would notice later. A second call does nothing.
func (a *Agent) Close() error {
	if a.remote {
		return a.stop(shellGrace)
	}
	return a.stop(0)
}

// stop ends the agent's input, and kills it if it has not ended after the grace time.
func (a *Agent) stop(grace time.Duration) error {
	_ = a.stdin.Close()
	if grace > 0 {
		select {
		case <-a.exited:
			return nil
		case <-time.After(grace):
		}
	}
	err := a.cmd.Process.Kill()
	_ = a.stdout.Close() // a child of the agent may hold the other end
	<-a.exited
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", a, err)
	}
	return nil
}

const maxTail = 4096

type tail []byte

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	all := append(*t, p...)
	*t = all[max(len(all)-maxTail, 0):]
	return len(p), nil
}

// Command is the hidden subcommand of mustang whose main calls worker.Main.
const Command = "agent-traffic"

// AgentOptions are the options of [StartAgent].
type AgentOptions struct {
	// Exe is the program, whose main must call worker.Main; empty means the running one, and with a shell "mustang" in
	// the PATH there.
	Exe  string
	Args []string // put before the agent's own; nil means [Command]
	// Shell, if not empty, is the command line that runs a command on another machine or in a container, such as
	// {"ssh", "root@10.0.0.1"}. ssh joins the words with spaces and passes them to a shell there.
	Shell []string
	Env   []string              // added to the environment, as KEY=value
	Start func(*exec.Cmd) error // for instance inside a network namespace; nil means cmd.Start
	CPU   int                   // that the agent is pinned to; negative means none
	// Priority, if not 0, is the real-time priority (SCHED_FIFO, 1 to 99) of the threads that carry load. Threads of lower
	// priority never interrupt them, so that each run makes the same sequence of events.
	Priority int
	// Congestion is the congestion control of TCP connections, if the kernel has it; empty means the kernel's default.
	// Accepted connections have the server's.
	Congestion string
	Timeout    time.Duration // to be ready and to listen; 0 means 30 s
}

func (o AgentOptions) command() (*exec.Cmd, error) {
	exe, remote := o.Exe, len(o.Shell) > 0
	if exe == "" && remote {
		exe = "mustang"
	} else if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	args := o.Args
	if args == nil {
		args = []string{Command}
	}
	words := slices.Concat(o.Shell, []string{exe}, args)
	words = append(words, fmt.Sprintf("--cpu=%d", o.CPU), fmt.Sprintf("--priority=%d", o.Priority))
	if o.Congestion != "" {
		words = append(words, "--congestion="+o.Congestion)
	}
	if remote {
		words = append(words, "--idle="+agentIdle.String())
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = withoutPreemption(append(os.Environ(), o.Env...))
	cmd.WaitDelay = stopGrace
	return cmd, nil
}

// noPreemption in GODEBUG switches the scheduler's signals off, which would interrupt the blocking calls every 10 ms.
const noPreemption = "asyncpreemptoff=1"

func withoutPreemption(env []string) []string {
	value := strings.TrimPrefix(os.Getenv("GODEBUG")+","+noPreemption, ",")
	return append(env, "GODEBUG="+value) // the last one counts
}

// DisablePreemption switches the Go scheduler's signals off. If they are on, it executes the program again with the
// same arguments and does not return. A shell to another machine passes no environment.
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
