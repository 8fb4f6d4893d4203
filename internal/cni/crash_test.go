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
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/cni/netconf"
	"mustang/internal/cni/record"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

const childVariable = "MUSTANG_CNI_CHILD" // turns the test binary into an ADD that is killed at a step

// order is the input of the killed process.
type order struct {
	StateDir, RunDir, BPFRoot, Cgroup string
	Request                           Request
	Die                               int // the number of steps and records after which it is killed
}

func child(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	steps := 0
	plugin := &Plugin{StateDir: o.StateDir, RunDir: o.RunDir, BPFRoot: o.BPFRoot, Cgroup: o.Cgroup,
		DeleteDevice: rtnl.DeleteInChild}
	plugin.After = func(string) error {
		if steps++; steps == o.Die {
			return unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		return nil
	}
	_, err := plugin.Add(context.Background(), o.Request)
	return err
}

// killed runs ADD in a process that is killed after a number of steps. It reports whether there are that many.
func (f *fixture) killed(p *pod, steps int) bool {
	f.t.Helper()
	text := testkit.Must(json.Marshal(order{f.plugin.StateDir, f.plugin.RunDir, f.plugin.BPFRoot, f.plugin.Cgroup,
		p.request, steps}))(f.t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	f.must(f.host.Start(cmd))
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL {
		return true
	}
	testkit.Require(f.t, err == nil, "ADD: %v: %s", err, &output)
	return false
}

// everything is a network whose ADD runs all steps.
func everything(mode string) []byte {
	return network("net", mode,
		`,"masquerade":true,"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}]}`)
}

var crashModes = []string{"veth", "bridge", "macvlan"} // has a mode of each family

// TestStepFails makes ADD fail after each step in turn: it undoes all steps.
func TestStepFails(t *testing.T) {
	t.Parallel()
	eachName(t, crashModes, newSocketFixture, func(t *testing.T, f *fixture, mode string) {
		f.must(f.del(f.added("first", everything(mode))))
		before := f.left()
		for fail := 1; ; fail++ {
			testkit.Require(t, fail <= 50, "ADD never ends")
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
			testkit.Require(t, strings.Contains(err.Error(), "today"), "step %d: %v", fail, err)
			if _, err := rtnl.In(p.Namespace).Device("eth0"); err == nil {
				t.Errorf("%v: the pod has its device still", err)
			}
			f.same(before, err.Error())
		}
		f.same(before, "DEL")
	})
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
	eachName(t, crashModes, newSocketFixture, func(_ *testing.T, f *fixture, mode string) {
		recoveries := slices.Clone(recoveries)
		f.must(f.del(f.added("first", everything(mode))))
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

// same fails the test if the state differs from before.
func (f *fixture) same(before []string, when string) {
	f.t.Helper()
	after := f.left()
	testkit.Require(f.t, slices.Equal(before, after), "%s:\nbefore %q\nafter  %q", when, before, after)
}

// TestGC keeps valid attachments and deletes all others of the network, with and without
// their namespaces, and without records.
func TestGC(t *testing.T) {
	t.Parallel()
	eachName(t, crashModes, newSocketFixture, func(t *testing.T, f *fixture, mode string) {
		f.must(f.del(f.added("first", everything(mode))))
		config := network("net", mode, `,"services":"both"`)
		kept := f.added("kept", config)
		other := f.added("other", network("elsewhere", "veth", ""))
		before := f.left()
		stale, gone := f.added("stale", config), f.added("gone", everything(mode))
		f.must(netns.Delete(gone.Name()))
		f.must(gone.Close())
		f.must(f.gc(config, kept))
		f.same(before, "GC")
		_, err := rtnl.In(stale.Namespace).Device("eth0")
		testkit.Check(t, err != nil, "the stale pod has its device still")
		f.must(f.check(kept))
		f.must(f.check(other))
		f.must(f.gc(config, kept))
		f.same(before, "GC again")
	})
}

// TestGCWithoutRecords deletes attachments by their addresses and device names.
func TestGCWithoutRecords(t *testing.T) {
	eachName(t, []string{"veth", "bridge"}, newFixture, func(t *testing.T, f *fixture, mode string) {
		config := network("net", mode, "")
		f.must(f.del(f.added("first", config)))
		before := f.left()
		f.added("a", config)
		b := f.added("b", config)
		f.must(os.RemoveAll(filepath.Dir(f.plugin.records().Path("net", record.Owner{}))))
		f.must(f.gc(config, b))
		leases := testkit.Must(f.plugin.addresses("net").Leases())(f.t)
		testkit.Check(t, len(leases) == 2 && leases[0].Owner.ContainerID == "b", "reserved is %v", leases)
		f.reach(f.host, b.Namespace, b.ips()[0])
		f.must(f.gc(config))
		f.must(os.RemoveAll(filepath.Dir(f.plugin.records().Path("net", record.Owner{}))))
		f.same(before, "GC of all")
	})
}

// TestGCOfSharedPrefix has two networks whose device names share a prefix: GC of one network keeps the devices of the
// other, and deletes its own without records.
func TestGCOfSharedPrefix(t *testing.T) {
	f := newFixture(t)
	twin := ""
	for i := 0; twin == ""; i++ {
		if name := fmt.Sprint("net", i); record.DevicePrefix(name) == record.DevicePrefix("net") {
			twin = name
		}
	}
	p := f.added("a", network("net", "veth", ""))
	own := f.added("b", network(twin, "veth", ""))
	f.must(os.RemoveAll(filepath.Join(f.plugin.RunDir, twin)))
	f.must(os.RemoveAll(f.plugin.stateDir(twin)))
	f.must(f.gc(network(twin, "veth", "")))
	f.must(f.check(p))
	f.reach(f.host, p.Namespace, p.ips()[0])
	_, err := rtnl.In(own.Namespace).Device("eth0")
	testkit.Check(t, err != nil, "the device of the network itself is left")
}

// TestSweep loses records, leases and the previous result. DEL finds the entries of the datapath by the namespace or
// the device of the pod; GC finds pods that no longer exist. Pods of other networks are unaffected.
func TestSweep(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		mode, services string
		byDEL          bool // set where DEL can identify the device as the attachment's: by its name
	}{
		{"veth", netconf.ServicesBoth, true}, {"veth", netconf.ServicesSocket, true}, {"bridge", netconf.ServicesTC, true},
		{"macvlan", netconf.ServicesTC, false}, {"macvlan", netconf.ServicesSocket, false},
	} {
		t.Run(test.mode+"/"+test.services, func(t *testing.T) {
			t.Parallel()
			f := newSocketFixture(t)
			services := `,"services":"` + test.services + `"`
			config := network("net", test.mode, services)
			kept := f.added("kept", network("kept", "veth", services))
			f.must(f.del(f.added("first", config))) // makes what stays
			before := f.left()
			lost := func() *pod {
				p := f.added("a", network("net", test.mode, services))
				for _, dir := range []string{filepath.Join(f.plugin.RunDir, "net"), f.plugin.stateDir("net")} {
					f.must(os.RemoveAll(dir))
				}
				return p
			}
			if test.byDEL {
				f.must(f.del(lost()))
				f.nothingMore(before)
			}
			p := lost()
			f.must(netns.Delete(p.Name()))
			f.must(p.Close())
			testkit.Eventually(t, 10*time.Second, func() error { // the kernel takes devices away some time after their namespace
				if err := f.gc(config); err != nil {
					return err
				}
				if more := f.more(before); len(more) > 0 {
					return fmt.Errorf("left is %q", more)
				}
				return nil
			})
			f.must(f.check(kept))
		})
	}
}
