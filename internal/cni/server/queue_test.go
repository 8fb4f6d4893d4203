// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"mustang/internal/cni/handover"
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

// TestQueueEnds has all workers busy for long: a verb that is begun is given back, and its plugin does it.
func TestQueueEnds(t *testing.T) {
	either(t, func(t *testing.T, f *fixture) {
		s, stop := f.busy()
		defer stop()
		s.queueLimit = time.Second
		p := f.pod("a", network("veth", ""))
		if a := <-f.queue(s, p); a.exit != 0 {
			t.Errorf("ADD whose turn does not come: %+v", a)
		}
		if n := len(s.queued); n > 0 {
			t.Errorf("%d verbs are queued still", n)
		}
		f.works(call{verb: "DEL", pod: p, socket: "none"})
	})
}

// TestQueueOrder has verbs wait for one worker for longer than it takes to begin them: they are done in the order in which they came.
func TestQueueOrder(t *testing.T) {
	s := &Server{workers: make(chan struct{}, 1), queued: make(chan struct{}, maxQueued), queueLimit: time.Minute, began: time.Now()}
	path := filepath.Join(t.TempDir(), "socket")
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	s.workers <- struct{}{}
	var order []string
	var all sync.WaitGroup
	const calls = 8
	for i := range calls {
		all.Go(func() {
			agent, err := handover.Dial(path)
			if err != nil {
				t.Error(err)
				return
			}
			defer agent.Close()
			if _, err := agent.Ask(t.Context(), handover.Request{Call: fmt.Sprint(i)}, ""); err != nil {
				t.Error(i, err)
			}
		})
		conn, err := listener.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			call, err := handover.Receive(conn)
			if err != nil {
				t.Error(err)
				return
			}
			defer call.Close()
			if !s.begin(t.Context(), call) {
				t.Errorf("%s is not begun", call.Call)
				return
			}
			order = append(order, call.Call)
			s.end()
			_ = call.Answer(handover.Answer{})
		})
		testkit.Eventually(t, 20*time.Second, func() error {
			s.progress()
			if n := len(s.queued); n != i+1 {
				return fmt.Errorf("%d verbs are queued", n)
			}
			return nil
		})
	}
	<-s.workers
	all.Wait()
	for i, call := range order {
		if call != fmt.Sprint(i) {
			t.Fatalf("done in the order %v", order)
		}
	}
	if len(order) != calls {
		t.Errorf("%d are done", len(order))
	}
}
