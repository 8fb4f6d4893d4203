// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"os/exec"
	"slices"

	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
)

// shares reports whether the agents of a path are those of other labs too, which enter
// its namespaces for each socket: rows that are compared then run in the same processes.
func (t *testbed) shares(p suites.Path) bool {
	return !t.counting && t.peer == nil && t.cluster == nil && !encloses(p.Lab)
}

// encloses reports whether the agents of a lab's places run in guests or containers.
func encloses(o lab.Options) bool { return o.Guests || o.Topology == lab.TopologyDocker }

// manyServices and manyRules are the numbers of services and of rules of a policy from which a lab takes seconds to build.
const manyServices, manyRules = 10_000, 10_000

// keeps reports whether a lab is kept for all instances, since it takes seconds to build.
func keeps(o lab.Options) bool {
	return encloses(o) || o.Services >= manyServices || o.PolicyRules >= manyRules
}

// ownClient reports whether a workload needs a client in the control group of the lab:
// where sockets are translated, and it opens them all the time.
func (t *testbed) ownClient(l *lab.Lab, workload string) bool {
	return workload == load.TCPCRR && (translates(l) || t.home != nil && translates(t.home))
}

// translates reports whether a lab translates addresses at sockets in its control group.
func translates(l *lab.Lab) bool { return l.Options.Via == lab.ViaEBPFSocket }

// clientOf returns the client of a path, whose server listens, and the namespace that the
// client opens its sockets in, "" for its own.
func (t *testbed) clientOf(ctx context.Context, p suites.Path, workload string) (client *load.Agent, namespace string, err error) {
	if !t.shares(p) {
		client, _, err = t.ends(ctx, p)
		return client, "", err
	}
	l, err := t.lab(ctx, p.Lab)
	if err != nil {
		return nil, "", err
	}
	from, err := l.Namespace(p.Client)
	if err != nil {
		return nil, "", err
	}
	if err := t.serveShared(ctx, p, l); err != nil {
		return nil, "", err
	}
	switch {
	case p.TwoCPUs:
		client, err = t.sharedAgent(ctx, l, otherClient)
	case t.ownClient(l, workload):
		client, err = t.agent(ctx, agentKey{p.Lab, p.Client, netip.AddrPort{}})
	default:
		client, err = t.sharedAgent(ctx, l, sharedClient)
	}
	return client, from.Path(), err
}

// serveShared lets the shared server listen in the namespace of a path's server, unless it
// does.
func (t *testbed) serveShared(ctx context.Context, p suites.Path, l *lab.Lab) error {
	key := agentKey{p.Lab, p.Server, p.Listen}
	if t.listening[key] {
		return nil
	}
	at, err := l.Namespace(p.Server)
	if err != nil {
		return err
	}
	server, err := t.sharedAgent(ctx, l, sharedServer)
	if err != nil {
		return err
	}
	_, err = server.ListenIn(ctx, at.Path(), p.Listen)
	t.listening[key] = err == nil
	return err
}

func (t *testbed) sharedAgent(ctx context.Context, l *lab.Lab, key agentKey) (*load.Agent, error) {
	if a, ok := t.agents[key]; ok {
		return a, nil
	}
	o := t.agentOptions(key == sharedServer)
	if key == otherClient {
		var err error
		if o.CPU, err = t.cpus.Other(); err != nil {
			return nil, err
		}
		l = t.home
	}
	o.Start = func(cmd *exec.Cmd) error { return l.Start(l.Places()[0], cmd) }
	a, err := load.StartAgent(ctx, o)
	if err == nil {
		t.agents[key] = a
		t.home = l
	}
	return a, err
}

// moves reports whether the client of a lab is to be in the lab's control group while it
// opens sockets. Where sockets are translated, it is in the lab's group meanwhile, and
// elsewhere in one without translation: a socket stays in the group in which it was opened.
func (t *testbed) moves(l *lab.Lab, client *load.Agent) bool {
	return t.home != nil && l != t.home && client == t.agents[sharedClient] && (translates(l) || translates(t.home))
}

// openIn calls open, which opens sockets of a client on a path.
func (t *testbed) openIn(l *lab.Lab, client *load.Agent, open func() error) error {
	if !t.moves(l, client) {
		return open()
	}
	if err := l.Move(client.PID()); err != nil {
		return err
	}
	return errors.Join(open(), t.home.Move(client.PID()))
}

func (t *testbed) open(ctx context.Context, p suites.Path, spec load.Spec) (*connection, error) {
	s, err := t.prepare(ctx, p, spec)
	if err != nil {
		return nil, err
	}
	return s, t.connect(ctx, []*connection{s})[0]
}

func (t *testbed) prepare(ctx context.Context, p suites.Path, spec load.Spec) (*connection, error) {
	var l *lab.Lab
	var err error
	if t.cluster == nil {
		if l, err = t.lab(ctx, p.Lab); err != nil {
			return nil, err
		}
	}
	s := &connection{lab: l, spec: spec}
	if s.client, s.spec.Namespace, err = t.clientOf(ctx, p, spec.Workload); err != nil {
		return nil, err
	}
	return s, nil
}

// atOnce is the number of connections that are opened or shut side by side: an agent waits
// most of that time for the timers of its runtime, which are slow so that they disturb no
// turn.
const atOnce = 32

// connect opens connections, and returns the error of each. Those whose client moves follow
// the others, one by one.
func (t *testbed) connect(ctx context.Context, all []*connection) []error {
	errs := make([]error, len(all))
	open := func(i int) {
		s := all[i]
		errs[i] = t.openIn(s.lab, s.client, func() (err error) {
			s.connection, err = s.client.Open(ctx, s.spec)
			return err
		})
	}
	var moving, others []int
	for i, s := range all {
		if t.moves(s.lab, s.client) {
			moving = append(moving, i)
		} else {
			others = append(others, i)
		}
	}
	together(len(others), atOnce, func(i int) { open(others[i]) })
	for _, i := range moving {
		open(i)
	}
	return errs
}

// hangUp ends the agents, but those in guests and containers.
func (t *testbed) hangUp() error {
	clear(t.listening)
	return t.closeAgents(func(key agentKey, _ *load.Agent) bool { return !encloses(key.lab) })
}

// renew ends the agents and labs of an instance, but those that are kept.
func (t *testbed) renew() error {
	err := t.hangUp()
	renewed := slices.DeleteFunc(slices.Collect(maps.Keys(t.labs)), keeps)
	return errors.Join(err, t.remove(renewed))
}
