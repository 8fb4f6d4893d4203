// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"net/netip"

	"golang.org/x/sync/errgroup"

	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
)

func encloses(o lab.Options) bool { return o.Guests || o.Topology == lab.TopologyDocker }

// manyServices and manyRules are the services and the rules of a policy from which a lab takes seconds to build.
const manyServices, manyRules = 10_000, 10_000

func keeps(o lab.Options) bool {
	return encloses(o) || o.Services >= manyServices || o.PolicyRules >= manyRules
}

func translates(l *lab.Lab) bool { return l.Options.Via == lab.ViaEBPFSocket }

type connection struct {
	row        *measuredRow
	lab        *lab.Lab
	client     *load.Agent
	spec       load.Spec // of its load
	connection load.Conn
}

// prepare returns the connection of a path, which is still to be opened: its server listens, and its client runs.
func (t *testbed) prepare(ctx context.Context, p suites.Path, spec load.Spec) (s *connection, err error) {
	s = &connection{spec: spec}
	if t.cluster == nil {
		if s.lab, err = t.lab(ctx, p.Lab); err != nil {
			return nil, err
		}
	}
	client, server := agentKey{p.Lab, p.Client, netip.AddrPort{}}, agentKey{p.Lab, p.Server, p.Listen}
	// Agents of other labs enter the namespaces for each socket: compared rows then run in the same processes. Joined
	// sockets have both ends in the lab's control group.
	if t.counting || t.peer != nil || t.cluster != nil || encloses(p.Lab) || p.Lab.Sockmap {
		if _, err = t.agent(ctx, s.lab, server); err == nil {
			s.client, err = t.agent(ctx, s.lab, client)
		}
		return s, err
	}
	from, err := s.lab.Namespace(p.Client)
	if err != nil {
		return nil, err
	}
	if s.spec.Namespace = from.Path(); !t.listening[server] {
		if err := t.listen(ctx, s.lab, server); err != nil {
			return nil, err
		}
	}
	switch {
	case p.TwoCPUs:
		client = otherClient
	case spec.Workload != load.TCPCRR || !translates(s.lab) && (t.home == nil || !translates(t.home)):
		client = sharedClient // one that opens translated sockets all the time is in the lab's control group
	}
	s.client, err = t.agent(ctx, s.lab, client)
	return s, err
}

func (t *testbed) listen(ctx context.Context, l *lab.Lab, server agentKey) error {
	at, err := l.Namespace(server.place)
	if err != nil {
		return err
	}
	shared, err := t.agent(ctx, l, sharedServer)
	if err != nil {
		return err
	}
	_, err = shared.ListenIn(ctx, at.Path(), server.listen)
	t.listening[server] = err == nil
	return err
}

// moves reports whether the client of a lab must change its control group while it opens sockets: a socket stays in
// the group in which it was opened. For a lab with socket translation, the client is in the lab's group meanwhile; for
// any other, in a group without translation.
func (t *testbed) moves(l *lab.Lab, client *load.Agent) bool {
	return t.home != nil && l != t.home && client == t.agents[sharedClient] && (translates(l) || translates(t.home))
}

func (t *testbed) openIn(l *lab.Lab, client *load.Agent, open func() error) error {
	if !t.moves(l, client) {
		return open()
	}
	if err := l.Move(client.PID()); err != nil {
		return err
	}
	return errors.Join(open(), t.home.Move(client.PID()))
}

// atOnce is the number of connections that are opened or shut side by side. An agent waits most of that time for the
// timers of its runtime, which are slow to leave turns undisturbed.
const atOnce = 32

// together calls do for each of n numbers, several at once: each waits for the kernel most of its time.
func together(n, limit int, do func(i int)) {
	var group errgroup.Group
	group.SetLimit(limit)
	for i := range n {
		group.Go(func() error {
			do(i)
			return nil
		})
	}
	_ = group.Wait()
}

// connect opens connections, and returns the error of each. Connections with a client that moves follow, one by one.
func (t *testbed) connect(ctx context.Context, all []*connection) []error {
	errs := make([]error, len(all))
	open := func(i int) {
		s := all[i]
		errs[i] = t.openIn(s.lab, s.client, func() (err error) {
			s.connection, err = s.client.Open(ctx, s.spec)
			return err
		})
	}
	moves := func(i int) bool { return t.moves(all[i].lab, all[i].client) }
	together(len(all), atOnce, func(i int) {
		if !moves(i) {
			open(i)
		}
	})
	for i := range all {
		if moves(i) {
			open(i)
		}
	}
	return errs
}
