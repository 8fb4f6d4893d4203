// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// childVariable turns the test binary into an ADD that is killed at a step.
const childVariable = "MUSTANG_CNI_CHILD"

// order is the input of the killed process.
type order struct {
	StateDir, RunDir, BPFRoot, Cgroup string
	Request                           Request
	// Die is the number of steps and records after which it is killed.
	Die int
}

// child runs ADD and is killed.
func child(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	steps := 0
	plugin := &Plugin{StateDir: o.StateDir, RunDir: o.RunDir, BPFRoot: o.BPFRoot, Cgroup: o.Cgroup, DeleteDevice: rtnl.DeleteInChild}
	plugin.After = func(string) error {
		if steps++; steps == o.Die {
			return unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		return nil
	}
	_, err := plugin.Add(context.Background(), o.Request)
	return err
}

// killed runs ADD in a process that is killed after a number of steps. It reports
// whether there are that many.
func (f *fixture) killed(p *pod, steps int) bool {
	f.t.Helper()
	text, err := json.Marshal(order{f.plugin.StateDir, f.plugin.RunDir, f.plugin.BPFRoot, f.plugin.Cgroup, p.request, steps})
	f.must(err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	f.must(f.host.Start(cmd))
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL {
		return true
	}
	if err != nil {
		f.t.Fatalf("ADD: %v: %s", err, &output)
	}
	return false
}

// everything is a network whose ADD runs all steps.
func everything(mode string) []byte {
	return network("net", mode, `,"masquerade":true,"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}]}`)
}

// crashModes has a mode of each family.
var crashModes = []string{"veth", "bridge", "macvlan"}

// TestStepFails makes ADD fail after each step in turn: it undoes all steps.
func TestStepFails(t *testing.T) {
	t.Parallel()
	for _, mode := range crashModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newCrashFixture(t, mode)
			before := f.left()
			for fail := 1; ; fail++ {
				if fail > 50 {
					t.Fatal("ADD never ends")
				}
				steps := 0
				f.plugin.After = func(step string) error {
					if steps++; steps == fail {
						return fmt.Errorf("no %s today", step)
					}
					return nil
				}
				p := f.pod(fmt.Sprint("a", fail), everything(mode))
				err := f.add(p)
				f.plugin.After = nil
				if err == nil {
					f.must(f.del(p))
					break
				}
				if !strings.Contains(err.Error(), "today") {
					t.Fatalf("step %d: %v", fail, err)
				}
				if _, err := rtnl.In(p.Namespace).Device("eth0"); err == nil {
					t.Errorf("%v: the pod has its device still", err)
				}
				f.same(before, err.Error())
			}
			f.same(before, "DEL")
		})
	}
}

// TestKilled kills ADD after each step in turn. Then DEL, with and without the pod's
// namespace, GC, or the next ADD deletes what it has left. The short form tries one of them after each step.
func TestKilled(t *testing.T) {
	t.Parallel()
	recoveries := []struct {
		name string
		do   func(*fixture, *pod)
	}{
		{"DEL", func(f *fixture, p *pod) { f.must(f.del(p)) }},
		{"DEL without namespace", func(f *fixture, p *pod) {
			p.request.Netns = ""
			f.must(f.del(p))
		}},
		{"GC", func(f *fixture, p *pod) { f.must(f.gc(p.request.Config)) }},
		{"ADD", func(f *fixture, p *pod) {
			if err := f.add(p); err != nil && strings.Contains(err.Error(), "run DEL first") {
				f.must(f.del(p)) // killed after the last step
				f.must(f.add(p))
			} else {
				f.must(err)
			}
			f.checkAndDelete(p)
		}},
	}
	for _, mode := range crashModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			recoveries := slices.Clone(recoveries)
			f := newCrashFixture(t, mode)
			before := f.left()
			for steps := 1; ; steps++ {
				rand.Shuffle(len(recoveries), func(i, j int) { recoveries[i], recoveries[j] = recoveries[j], recoveries[i] })
				for i, recovery := range recoveries[:testkit.Repeats(1, len(recoveries))] {
					p := f.pod(fmt.Sprintf("a%d-%d", steps, i), everything(mode))
					if !f.killed(p, steps) {
						f.must(f.del(p))
						return
					}
					recovery.do(f, p)
					f.same(before, fmt.Sprintf("killed after step %d, then %s", steps, recovery.name))
				}
			}
		})
	}
}

// newCrashFixture is a fixture in which the shared state of the host exists.
func newCrashFixture(t *testing.T, mode string) *fixture {
	f := newFixture(t)
	f.plugin.Cgroup = testkit.Cgroup(t)
	f.must(f.del(f.added("first", everything(mode))))
	return f
}

// same fails the test if the state differs from before.
func (f *fixture) same(before []string, when string) {
	f.t.Helper()
	if after := f.left(); !slices.Equal(before, after) {
		f.t.Fatalf("%s:\nbefore %q\nafter  %q", when, before, after)
	}
}
