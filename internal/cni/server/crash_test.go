// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/cni"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// childVariable turns the test binary into a server that is killed at a step.
const childVariable = "MUSTANG_CNI_SERVER"

// order is the input of such a server.
type order struct {
	Socket, Program                   string
	StateDir, RunDir, BPFRoot, Cgroup string
	// Die is the number of steps and records of ADD after which it is killed; Stop after which it is stopped. 0: never.
	Die, Stop int
}

// child runs a server in the namespace that it is in, until its stdin ends.
func child(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	host, err := netns.Current()
	if err != nil {
		return err
	}
	var mu sync.Mutex
	steps := 0
	plugin := cni.Plugin{StateDir: o.StateDir, RunDir: o.RunDir, BPFRoot: o.BPFRoot, Cgroup: o.Cgroup}
	plugin.After = func(string) error {
		mu.Lock()
		defer mu.Unlock()
		steps++
		switch steps {
		case o.Die:
			return unix.Kill(os.Getpid(), unix.SIGKILL)
		case o.Stop:
			return unix.Kill(os.Getpid(), unix.SIGSTOP)
		}
		return nil
	}
	s, err := Listen(Options{Socket: o.Socket, Host: host, Plugin: plugin, Program: o.Program})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	fmt.Println("ready")
	return s.Run(ctx)
}

// process is a server in a process of its own.
type process struct {
	f     *fixture
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

// start starts a server, and returns when it listens.
func (f *fixture) start(o order) *process {
	f.t.Helper()
	options := f.options()
	o.Socket, o.Program = f.socket, options.Program
	o.StateDir, o.RunDir, o.BPFRoot, o.Cgroup = f.plugin.StateDir, f.plugin.RunDir, f.plugin.BPFRoot, f.plugin.Cgroup
	text, err := json.Marshal(o)
	f.must(err)
	p := &process{f: f, cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	p.cmd.Stderr = os.Stderr
	p.stdin, err = p.cmd.StdinPipe()
	f.must(err)
	out, err := p.cmd.StdoutPipe()
	f.must(err)
	f.must(f.host.Start(p.cmd))
	f.t.Cleanup(func() { _, _ = p.cmd.Process.Kill(), p.cmd.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		f.t.Fatalf("the server does not start: %v", err)
	}
	return p
}

// end ends the server and reports whether it was killed before.
func (p *process) end() (killed bool) {
	p.f.t.Helper()
	_ = p.stdin.Close()
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL {
		return true
	}
	p.f.must(err)
	return false
}

// TestKilled kills the server after each step of ADD in turn. The plugin then does ADD itself, as if nothing had been: pod
// and state are those of an ADD alone, and DEL leaves nothing.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"veth", "bridge", "macvlan"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			config := everything(mode)
			f.works(call{verb: "DEL", pod: f.add("first", "none", config), socket: "none"})
			before := f.state()
			alone := f.add("alone", "none", config)
			want := len(f.state())
			f.works(call{verb: "DEL", pod: alone, socket: "none"})
			for steps := 1; ; steps++ {
				server := f.start(order{Die: steps})
				p := f.add(fmt.Sprint("a", steps), f.socket, config)
				if got := f.state(); len(got) != want {
					t.Fatalf("killed after step %d: ADD left %q", steps, got)
				}
				f.works(call{verb: "CHECK", pod: p, socket: f.socket})
				f.works(call{verb: "DEL", pod: p, socket: f.socket})
				f.same(before, fmt.Sprintf("killed after step %d", steps))
				if !server.end() {
					if steps < 10 {
						t.Fatalf("ADD has %d steps only", steps)
					}
					return
				}
			}
		})
	}
}

// TestKilledBoth kills server and plugin together after a step. DEL and a second ADD work then.
func TestKilledBoth(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config := everything("veth")
	f.works(call{verb: "DEL", pod: f.add("first", "none", config), socket: "none"})
	before := f.state()
	for steps := 1; ; steps++ {
		server := f.start(order{Stop: steps})
		p := f.pod(fmt.Sprint("a", steps), config)
		cmd, _, _ := f.command(call{verb: "ADD", pod: p, socket: f.socket})
		f.must(f.host.Start(cmd))
		if finished := f.stopped(server, cmd); finished {
			f.must(server.stdin.Close())
			return
		}
		f.must(cmd.Process.Kill())
		_ = cmd.Wait()
		f.must(server.cmd.Process.Kill())
		_ = server.cmd.Wait()
		if rand.IntN(2) == 0 {
			if a := f.run(call{verb: "ADD", pod: p, socket: "none"}); a.exit != 0 && !strings.Contains(a.stdout, "run DEL first") {
				t.Fatalf("killed after step %d: ADD: %s", steps, a.stdout)
			}
		}
		f.works(call{verb: "DEL", pod: p, socket: "none"})
		f.same(before, fmt.Sprintf("killed after step %d", steps))
	}
}

// stopped waits until the server has stopped itself; finished is that the plugin has ended before.
func (f *fixture) stopped(server *process, plugin *exec.Cmd) (finished bool) {
	f.t.Helper()
	testkit.Eventually(f.t, time.Minute, func() error {
		if state(plugin.Process.Pid) == "Z" {
			finished = true
			return nil
		}
		if got := state(server.cmd.Process.Pid); got != "T" {
			return fmt.Errorf("the server is in state %s", got)
		}
		return nil
	})
	if finished {
		f.must(plugin.Wait())
	}
	return finished
}

// state returns the state of a process: R, S, D, T, Z.
func state(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return err.Error()
	}
	fields := strings.Fields(string(stat[slices.Index(stat, ')'):]))
	return fields[1]
}
