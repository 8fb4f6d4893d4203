// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// readTime is how long reading and validating a configuration takes before signals are received. The Go runtime starts
// three threads to receive signals, which makes ADD 0.6 ms longer. Until then a signal ends the process by itself.
const readTime = 10 * time.Millisecond

// stops are the signals that ask a process to end.
var stops = []os.Signal{unix.SIGINT, unix.SIGTERM}

// signals decide what SIGINT and SIGTERM do. While the configuration is read and validated, nothing has changed, and they
// end the process. After that they cancel the context of a slow verb, which then undoes its changes; a fast verb ignores
// them and finishes.
type signals struct {
	mu     sync.Mutex
	parsed bool
	timer  *time.Timer
}

// endBy starts with the reading of the configuration. fail ends the process with an error; a signal
// calls it if readTime has passed.
func endBy(fail func(error)) *signals {
	s := &signals{}
	s.timer = time.AfterFunc(readTime, func() {
		received := make(chan os.Signal, 1)
		s.mu.Lock()
		if !s.parsed {
			signal.Notify(received, stops...)
		}
		s.mu.Unlock()
		got := <-received
		s.mu.Lock() // for good, if the process ends: no verb begins
		if s.parsed {
			s.mu.Unlock()
		} else {
			fail(fmt.Errorf("%v while the configuration was read, nothing has changed: %w", got, context.Canceled))
		}
	})
	return s
}

// verb returns the context of a verb, and the function to call when its configuration is valid. slow is set for verbs that
// can take long.
func (s *signals) verb(slow bool) (ctx context.Context, parsed func()) {
	ctx = context.Background()
	if slow {
		ctx, _ = signal.NotifyContext(ctx, stops...) // until the process ends
	}
	return ctx, func() {
		s.timer.Stop()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.parsed = true
		if !slow {
			signal.Ignore(stops...)
		}
	}
}
