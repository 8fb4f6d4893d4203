// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"os"
	"os/exec"
	"time"
)

// Command is the hidden subcommand of mustang whose main calls worker.Main.
const Command = "agent-traffic"

// AgentOptions are the options of [StartAgent].
type AgentOptions struct {
	// Exe is the program, whose main must call worker.Main; empty means the running
	// one, and with a shell "mustang" in the PATH there.
	Exe string
	// Args are put before the agent's own; nil means [Command].
	Args []string
	// Shell, if not empty, is the command line that runs a command on another machine
	// or in a container, such as {"ssh", "root@10.0.0.1"}. The agent's command line is
	// appended to it. ssh joins the words with spaces and passes them to a shell there.
	Shell []string
	// Env is added to the environment, as KEY=value.
	Env []string
	// Start starts the command, for instance inside a network namespace; nil
	// means cmd.Start.
	Start func(*exec.Cmd) error
	// CPU is the CPU that the agent is pinned to; negative means none.
	CPU int
	// Priority, if not 0, is the real-time priority (SCHED_FIFO, 1 to 99) of the threads
	// that carry load. Threads of lower priority never interrupt them, so that each run
	// makes the same sequence of events.
	Priority int
	// Timeout is the time that the agent has to be ready and to listen; 0 means 10 s, or 30 s with a shell.
	Timeout time.Duration
}

func (o AgentOptions) timeout() time.Duration {
	switch {
	case o.Timeout != 0:
		return o.Timeout
	case len(o.Shell) > 0:
		return shellTimeout
	}
	return startTimeout
}

func (o AgentOptions) command() (*exec.Cmd, error) {
	words, exe := o.Shell, o.Exe
	if exe == "" {
		exe = "mustang"
		if len(words) == 0 {
			var err error
			if exe, err = os.Executable(); err != nil {
				return nil, err
			}
		}
	}
	args := o.Args
	if args == nil {
		args = []string{Command}
	}
	words = append(append(words[:len(words):len(words)], exe), args...)
	words = append(words, fmt.Sprintf("--cpu=%d", o.CPU), fmt.Sprintf("--priority=%d", o.Priority))
	if len(o.Shell) > 0 {
		words = append(words, "--idle="+agentIdle.String())
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = withoutPreemption(append(os.Environ(), o.Env...))
	cmd.WaitDelay = StopGrace
	return cmd, nil
}
