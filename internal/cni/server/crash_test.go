// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/cni"
	"mustang/internal/netns"
)

// childVariable turns the test binary into a server that is killed at a step.
const childVariable = "MUSTANG_CNI_SERVER"

// order is the input of such a server.
type order struct {
	Socket, StateDir, RunDir, BPFRoot, Cgroup string
	// Die is the number of steps and records of ADD after which it is killed. 0: never.
	Die int
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
		if steps == o.Die {
			return unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		return nil
	}
	s, err := Listen(Options{Socket: o.Socket, Host: host, Plugin: plugin})
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
	o.Socket, o.StateDir, o.RunDir, o.BPFRoot, o.Cgroup = f.socket, f.plugin.StateDir, f.plugin.RunDir, f.plugin.BPFRoot, f.plugin.Cgroup
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

// TestKilled kills the server after each step of ADD in turn. The plugin fails with the code of what may succeed later. An ADD after that works
// unless the first is complete, and DEL leaves nothing.
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
				p := f.pod(fmt.Sprint("a", steps), config)
				got := f.run(call{verb: "ADD", pod: p, socket: f.socket})
				killed := server.end()
				if killed {
					f.triesAgain(got, "ended before its answer")
					got = f.run(call{verb: "ADD", pod: p, socket: f.socket})
				}
				if complete := strings.Contains(got.stdout, "run DEL first"); !complete {
					if got.exit != 0 || len(f.state()) != want {
						t.Fatalf("killed after step %d: ADD: %+v left %q", steps, got, f.state())
					}
					f.read(p, got)
					f.works(call{verb: "CHECK", pod: p, socket: f.socket})
				}
				f.works(call{verb: "DEL", pod: p, socket: f.socket})
				f.same(before, fmt.Sprintf("killed after step %d", steps))
				if !killed {
					if steps < 10 {
						t.Fatalf("ADD has %d steps only", steps)
					}
					return
				}
			}
		})
	}
}

// triesAgain fails the test unless the plugin has failed with the code of what may succeed later, and a text about the agent.
func (f *fixture) triesAgain(a answer, text string) {
	f.t.Helper()
	if want := "the agent at " + f.socket + " " + text; a.exit != 1 || !strings.Contains(a.stdout, `"code":11`) || !strings.Contains(a.stdout, want) {
		f.t.Fatalf("%+v, want %q", a, want)
	}
}
