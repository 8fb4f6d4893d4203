// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/cni"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// busy serves with all workers busy, after some changes to the server, until the test or stop ends it.
func (f *fixture) busy(changes ...func(*Server)) (s *Server, stop func()) {
	f.t.Helper()
	s = testkit.Must(Listen(f.options()))(f.t)
	s.queueLimit = time.Minute
	for _, change := range changes {
		change(s)
	}
	stop = f.runs(s)
	for range maxWorkers {
		s.workers <- struct{}{}
	}
	return s, stop
}

// calls waits until a server has a number of requests.
func (f *fixture) calls(s *Server, want int) {
	f.t.Helper()
	testkit.Eventually(f.t, 20*time.Second, func() error {
		if n := len(s.calls); n != want {
			return fmt.Errorf("%d requests, want %d", n, want)
		}
		return nil
	})
}

// TestQueue has verbs wait while all workers are busy: the server does them once one is free.
func TestQueue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, _ := f.busy()
	const n = 3
	done := make(chan answer, n)
	var pods []*pod
	for i := range n {
		p := f.pod(fmt.Sprint("a", i), network("veth", ""))
		pods = append(pods, p)
		go func() { done <- f.run(call{verb: "ADD", pod: p, socket: f.socket}) }()
	}
	f.calls(s, n)
	if len(done) > 0 {
		t.Errorf("ADD while all workers are busy: %+v", <-done)
	}
	<-s.workers
	for range n {
		a := <-done
		testkit.Check(t, a.exit == 0, "ADD once a worker is free: %+v", a)
	}
	for _, p := range pods {
		f.works(call{verb: "DEL", pod: p, socket: "none"})
	}
}

// TestDeclined has a server leave a verb to its plugin: too many are there before it, its turn does not come, and the
// server ends.
func TestDeclined(t *testing.T) {
	for name, test := range map[string]struct {
		before []func(*Server)
		during func(f *fixture, s *Server, stop func())
	}{
		"too many": {before: []func(*Server){func(s *Server) {
			for range maxCalls {
				s.calls <- struct{}{}
			}
		}}},
		"no worker": {before: []func(*Server){func(s *Server) { s.queueLimit = time.Millisecond }}},
		"end": {during: func(f *fixture, s *Server, stop func()) {
			f.calls(s, 1)
			stop()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			s, stop := f.busy(test.before...)
			p := f.pod("a", network("veth", ""))
			done := make(chan answer, 1)
			go func() { done <- f.run(call{verb: "ADD", pod: p, socket: f.socket}) }()
			if test.during != nil {
				test.during(f, s, stop)
			}
			a := <-done
			testkit.Check(t, a.exit == 0, "ADD: %+v", a)
			f.works(call{verb: "DEL", pod: p, socket: "none"})
		})
	}
}

// TestKilledInQueue kills a plugin whose ADD waits for a worker, and has the pod deleted, as runtimes do: the ADD is
// not done after that.
func TestKilledInQueue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, _ := f.busy()
	f.works(call{verb: "DEL", pod: f.add("before", "none", network("veth", "")), socket: "none"})
	before := f.state()
	p := f.pod("a", network("veth", ""))
	cmd, _, _ := f.command(call{verb: "ADD", pod: p, socket: f.socket})
	f.must(f.host.Start(cmd))
	f.calls(s, 1)
	f.must(cmd.Process.Kill())
	_ = cmd.Wait()
	f.works(call{verb: "DEL", pod: p, socket: "none"})
	<-s.workers
	f.calls(s, 0)
	f.same(before, "after DEL of a pod whose ADD was killed")
}

// TestEndsBeforeWaitingVerb ends a server while a verb waits for the lock of a process that is stopped: the server does
// not wait as long. The verb ends once the lock is free.
func TestEndsBeforeWaitingVerb(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.add("a", "none", network("veth", ""))
	s := testkit.Must(Listen(f.options()))(f.t)
	s.farewell = 300 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()

	dir := testkit.Must(os.Open(filepath.Join(f.plugin.StateDir, "net")))(f.t)
	f.must(unix.Flock(int(dir.Fd()), unix.LOCK_EX))
	cmd, stdout, _ := f.command(call{verb: "DEL", pod: p, socket: f.socket})
	f.must(f.host.Start(cmd))
	testkit.Eventually(t, 10*time.Second, func() error {
		if len(s.workers) != 1 {
			return fmt.Errorf("%d verbs have begun", len(s.workers))
		}
		return nil
	})
	cancel()
	select {
	case err := <-ended:
		f.must(err)
	case <-time.After(5 * time.Second):
		t.Error("the server waits for the verb")
	}
	f.must(dir.Close())
	err := cmd.Wait()
	testkit.Check(t, err == nil, "DEL: %v: %s", err, stdout)
}

// asked is an agent's knowledge of Pods.
type asked struct {
	mu    sync.Mutex
	names []string
	known time.Time // from then on
	err   error
}

func (a *asked) await(ctx context.Context, namespace, name, uid string) error {
	a.mu.Lock()
	a.names = append(a.names, namespace+"/"+name+" "+uid)
	known, err := a.known, a.err
	a.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(known)):
		return err
	}
}

// TestAwaitsPolicies has ADD wait for the policies of its Pod before any change: in the server, or in the plugin if the
// server declines or is late. Without policies ADD fails, and the runtime tries again.
func TestAwaitsPolicies(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		late    time.Duration
		err     error
		options func(*Options)
		config  string
		served  int // ADDs that the server does
		asks    bool
	}{
		"known":             {served: 1, asks: true},
		"late":              {late: 3 * time.Second, asks: true},
		"another version":   {options: func(o *Options) { o.Version = "another" }, asks: true},
		"never":             {err: errors.New("no such Pod"), asks: true},
		"not of Kubernetes": {config: `,"policies":"auto"`, served: 1},
		"another datapath":  {options: func(o *Options) { o.Plugin.BPFRoot += "2" }, err: errors.New("another layout or directories")},
		"nothing to ask":    {options: func(o *Options) { o.Plugin.Await = nil }, err: errors.New("no client of the agent is set")},
		"chained, and never": {config: `,"policies":"agent","chained":true,"prevResult":{}`, err: errors.New("no such Pod"),
			asks: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			o := f.options()
			a := &asked{err: test.err}
			o.Plugin.Await = a.await
			if test.options != nil {
				test.options(&o)
			}
			counts, _ := f.serve(o)
			config := `,"policies":"agent"`
			if test.config != "" {
				config = test.config
			}
			all := network("veth", config)
			if strings.Contains(config, "chained") {
				all = []byte(`{"cniVersion":"1.1.0","name":"net","type":"mustang-cni"` + config + `}`)
			}
			c := call{verb: "ADD", pod: f.pod("a", all), socket: f.socket,
				env: []string{"CNI_ARGS=K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=1"}}
			before := f.state()
			a.mu.Lock()
			a.known = time.Now().Add(test.late)
			a.mu.Unlock()
			got := f.run(c)
			a.mu.Lock()
			defer a.mu.Unlock()
			testkit.Check(t, (len(a.names) > 0) == test.asks && (!test.asks || a.names[0] == "shop/web 1"),
				"it asked for %q", a.names)
			if test.err != nil {
				if got.exit != 1 || !strings.Contains(got.stdout, `"code":11`) || !strings.Contains(got.stdout, test.err.Error()) {
					t.Errorf("exit %d: %s", got.exit, got.stdout)
				}
				f.same(before, "ADD")
				return
			}
			if n := counts.count("ADD"); got.exit != 0 || n != test.served || time.Now().Before(a.known) {
				t.Errorf("exit %d: %s; the server did %d ADDs, want %d", got.exit, got.stdout, n, test.served)
			}
			f.read(c.pod, got)
			f.works(call{verb: "DEL", pod: c.pod, socket: f.socket})
		})
	}
}

// TestAwaitsOfOtherLayout gives a plugin whose maps have another layout no answer: policies do not hold there.
func TestAwaitsOfOtherLayout(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	o := f.options()
	o.Plugin.Await = (&asked{}).await
	var err error
	o.Host, err = netns.Current() // this process asks
	f.must(err)
	defer o.Host.Close()
	f.serve(o)
	r := Request{Version: "1", Environment: map[string]string{
		"CNI_COMMAND": Await, "MUSTANG_CNI_STATE_DIR": f.plugin.StateDir, "MUSTANG_CNI_RUN_DIR": f.plugin.RunDir,
		"MUSTANG_BPF_ROOT": f.plugin.BPFRoot, "MUSTANG_CNI_CGROUP": f.plugin.Cgroup,
	}}
	for layout, want := range map[string]bool{cni.Layout(): true, cni.Layout() + "0": false, "": false} {
		r.Layout = layout
		ctx, cancel := context.WithTimeout(t.Context(), map[bool]time.Duration{true: time.Minute, false: time.Second}[want])
		err := AwaitPolicies(ctx, f.socket, r)
		cancel()
		testkit.Check(t, (err == nil) == want, "layout %q: %v", layout, err)
	}
}
