// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// busy serves with all workers busy. stop ends the server.
func (f *fixture) busy() (s *Server, stop func()) {
	f.t.Helper()
	s, err := Listen(f.options())
	f.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for range maxWorkers {
		s.workers <- struct{}{}
	}
	return s, func() {
		f.t.Helper()
		cancel()
		f.must(<-ended)
	}
}

// queue has the plugin ADD a pod, and returns once the server has begun that.
func (f *fixture) queue(s *Server, p *pod) <-chan answer {
	f.t.Helper()
	done := make(chan answer, 1)
	go func() { done <- f.run(call{verb: "ADD", pod: p, socket: f.socket}) }()
	testkit.Eventually(f.t, 20*time.Second, func() error {
		s.progress() // another verb has ended
		if n := len(s.queued); n != 1 {
			return fmt.Errorf("%d verbs are queued", n)
		}
		return nil
	})
	return done
}

// TestQueueIsBegun has all workers busy for longer than a plugin waits for the begin, while verbs end: the server does what it has been handed once a worker
// is free.
func TestQueueIsBegun(t *testing.T) {
	either(t, func(t *testing.T, f *fixture) {
		s, stop := f.busy()
		defer stop()
		p := f.pod("a", network("veth", ""))
		done := f.queue(s, p)
		select {
		case a := <-done:
			t.Errorf("ADD while all workers are busy: %+v", a)
		case <-time.After(3 * time.Second):
		}
		<-s.workers
		if a := <-done; a.exit != 0 || len(s.queued) > 0 {
			t.Errorf("ADD once a worker is free: %+v, %d verbs are queued", a, len(s.queued))
		}
		f.works(call{verb: "DEL", pod: p, socket: "none"})
	})
}

// TestQueueWithoutProgress has all workers busy, and no verb end: the plugin works alone.
func TestQueueWithoutProgress(t *testing.T) {
	either(t, func(t *testing.T, f *fixture) {
		s, stop := f.busy()
		defer stop()
		p := f.pod("a", network("veth", ""))
		f.works(call{verb: "ADD", pod: p, socket: f.socket})
		f.works(call{verb: "DEL", pod: p, socket: f.socket})
		if n := len(s.queued); n > 0 {
			t.Errorf("%d verbs are queued", n)
		}
	})
}

// TestEndsWithQueue ends a server while a verb that it has begun waits for a worker: the plugin does it.
func TestEndsWithQueue(t *testing.T) {
	either(t, func(t *testing.T, f *fixture) {
		s, stop := f.busy()
		p := f.pod("a", network("veth", ""))
		done := f.queue(s, p)
		stop()
		if a := <-done; a.exit != 0 {
			t.Errorf("ADD whose server ended: %+v", a)
		}
		f.works(call{verb: "DEL", pod: p, socket: "none"})
	})
}
