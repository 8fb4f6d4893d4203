// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

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
	Timeout  time.Duration // to be ready and to listen; 0 means 30 s
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

// DisablePreemption switches the Go scheduler's signals off. If they are on, it executes the program anew with the same
// arguments and does not return. A shell to another machine passes no environment.
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
