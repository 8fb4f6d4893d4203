// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// startTimeout is how long [StartAgent] waits for an agent to say that it is
// ready.
const startTimeout = 10 * time.Second

// AgentOptions say how to start an agent.
type AgentOptions struct {
	// Exe is the program, whose main is to call [Main]; empty means the running
	// one.
	Exe string
	// Args are put before the agent's own; nil means "traffic-agent", the hidden
	// subcommand.
	Args []string
	// Env is added to the environment, as KEY=value.
	Env []string
	// Start starts the command, for instance inside a network namespace; nil
	// means cmd.Start.
	Start func(*exec.Cmd) error
	// CPU is the CPU that the agent is pinned to; negative means none.
	CPU int
	// Priority, when not 0, makes the threads that carry load real-time ones of
	// this priority (SCHED_FIFO, 1 to 99): none of lower priority interrupts them,
	// so that always the same happens in the same order.
	Priority int
	// Timeout is how long the agent has to become ready; 0 means 10 s.
	Timeout time.Duration
}

// StartAgent starts an agent and waits until it is ready. When it returns an
// error, no process is left.
func StartAgent(o AgentOptions) (_ *Agent, err error) {
	cmd, err := agentCommand(o)
	if err != nil {
		return nil, err
	}
	a := &Agent{cmd: cmd, exited: make(chan struct{}), pending: map[uint64]chan reply{}}
	cmd.Stderr = &a.stderr
	cmd.WaitDelay = time.Second
	if a.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start traffic agent: %w", err)
	}
	if a.stdout, err = cmd.StdoutPipe(); err != nil {
		return nil, errors.Join(fmt.Errorf("start traffic agent: %w", err), a.stdin.Close())
	}
	a.out = newLineWriter(a.stdin)
	start := o.Start
	if start == nil {
		start = (*exec.Cmd).Start
	}
	if err := start(cmd); err != nil {
		if cmd.Process != nil { // started, then something after it went wrong
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		} else {
			_, _ = a.stdin.Close(), a.stdout.Close()
		}
		return nil, fmt.Errorf("start traffic agent: %w", err)
	}
	ready := a.expect(0)
	go a.receive()
	timeout := o.Timeout
	if timeout == 0 {
		timeout = startTimeout
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case _, ok := <-ready:
		if ok {
			return a, nil
		}
		err = a.reason()
	case <-timer.C:
		err = fmt.Errorf("not ready after %v", timeout)
	}
	_ = a.Close()
	return nil, fmt.Errorf("start traffic agent: %w", err)
}

// agentCommand builds the command line.
func agentCommand(o AgentOptions) (*exec.Cmd, error) {
	exe := o.Exe
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("start traffic agent: %w", err)
		}
	}
	args := o.Args
	if args == nil {
		args = []string{"traffic-agent"}
	}
	cmd := exec.Command(exe, append(args[:len(args):len(args)], fmt.Sprintf("--cpu=%d", o.CPU), fmt.Sprintf("--priority=%d", o.Priority))...)
	// The scheduler's signals would cut the blocking calls short every 10 ms.
	debug := "asyncpreemptoff=1"
	if old := os.Getenv("GODEBUG"); old != "" {
		debug = old + "," + debug
	}
	cmd.Env = append(append(os.Environ(), o.Env...), "GODEBUG="+debug)
	return cmd, nil
}
