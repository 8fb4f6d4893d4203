// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"mustang/internal/netns"
)

// phase is a part of a migration, with the connections that began in it.
type phase struct {
	name                     string
	connections, lost, again int // again: a packet was sent again
	longest                  time.Duration
}

// loadClients open connections all the time. Each has a name.
type loadClients struct {
	of map[string]*loadClient

	mu     sync.Mutex
	phases []*phase
	errs   []error // of the first connections that were lost
}

// loadClient is one that works until it is stopped.
type loadClient struct {
	sync.WaitGroup
	stop context.CancelFunc
}

// workers is how many connections a client has open at once.
const workers = 2

// start has a client open connections from a namespace.
func (v *loadClients) start(ctx context.Context, name string, ns *netns.Namespace, address string) {
	ctx, stop := context.WithCancel(ctx)
	one := &loadClient{stop: stop}
	for range workers {
		one.Go(func() {
			ticker := time.NewTicker(pace)
			defer ticker.Stop()
			for ctx.Err() == nil {
				v.visit(name, ns, address)
				<-ticker.C
			}
		})
	}
	v.of[name] = one
}

// stop returns once a client has no connection.
func (v *loadClients) stop(name string) {
	if one := v.of[name]; one != nil {
		one.stop()
		one.Wait()
		delete(v.of, name)
	}
}

// visit opens a connection, sends a request, and closes it.
func (v *loadClients) visit(name string, ns *netns.Namespace, address string) {
	v.mu.Lock()
	in := v.phases[len(v.phases)-1]
	v.mu.Unlock()
	begun, again := time.Now(), false
	conn, err := connect(ns, address, loadTimeout)
	if err == nil {
		err = ask(conn, bufio.NewReader(conn))
		again = resent(conn) != nil
		err = errors.Join(err, conn.Close())
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	in.connections++
	in.longest = max(in.longest, time.Since(begun))
	if again {
		in.again++
	}
	if err != nil {
		if in.lost++; len(v.errs) < 20 {
			v.errs = append(v.errs, fmt.Errorf("%s, %s, begun at %s: %w", in.name, name, begun.Format("15:04:05.000"), err))
		}
	}
}

// begin begins a phase.
func (v *loadClients) begin(name string) *phase {
	p := &phase{name: name}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.phases = append(v.phases, p)
	return p
}

// table returns the counts of all phases.
func (v *loadClients) table() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	all, lines := phase{name: "all"}, []string{"| phase | connections | lost | with packets sent again | slowest |",
		"|---|---|---|---|---|"}
	add := func(p phase) {
		lines = append(lines, fmt.Sprintf("| %s | %d | %d | %d | %d ms |", p.name, p.connections, p.lost, p.again,
			p.longest.Milliseconds()))
	}
	for _, p := range v.phases {
		add(*p)
		all.connections, all.lost, all.again = all.connections+p.connections, all.lost+p.lost, all.again+p.again
		all.longest = max(all.longest, p.longest)
	}
	add(all)
	return strings.Join(lines, "\n")
}
