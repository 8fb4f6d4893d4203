// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// busy serves with all workers busy, after some changes to the server, until the test or stop ends it.
func (f *fixture) busy(changes ...func(*Server)) (s *Server, stop func()) {
	f.t.Helper()
	s, err := Listen(f.options())
	f.must(err)
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
		if a := <-done; a.exit != 0 {
			t.Errorf("ADD once a worker is free: %+v", a)
		}
	}
	for _, p := range pods {
		f.works(call{verb: "DEL", pod: p, socket: "none"})
	}
}

// TestDeclined has a server leave a verb to its plugin: too many are there before it, its turn does not come, and the server ends.
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
			if a := <-done; a.exit != 0 {
				t.Errorf("ADD: %+v", a)
			}
			f.works(call{verb: "DEL", pod: p, socket: "none"})
		})
	}
}

// TestKilledInQueue kills a plugin whose ADD waits for a worker, and has the pod deleted, as runtimes do: the ADD is not done after that.
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
