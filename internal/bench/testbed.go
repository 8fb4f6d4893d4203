// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"mustang/internal/bench/cnibench"
	"mustang/internal/bench/host"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/rtnl"
)

// testbed holds the labs of a run and the agents in them. Both start when they are first needed.
type testbed struct {
	store    lab.Store
	cpus     host.CPUPair
	counting bool // instructions
	labs     map[lab.Options]*lab.Lab
	built    int // labs so far, for their names
	failed   map[lab.Options]error
	agents   map[agentKey]*load.Agent
	cluster  Cluster // has the pods of all agents; nil if labs have them
	peer     *peer   // the other machine, nil if there is none
	// notes are remarks on all rows of a lab.
	notes   map[lab.Options]string
	plugins *cnibench.Testbed // nil until a plugin is called
	// listening are the addresses of the shared server, and home is the lab in whose control group the shared agents are.
	listening map[agentKey]bool
	home      *lab.Lab
}

// agentKey identifies an agent: its place, and its address if it is a server. The agents
// that the paths of several labs share have neither lab nor place.
type agentKey struct {
	lab    lab.Options
	place  string
	listen netip.AddrPort
}

// Keys of the agents that paths share.
var (
	sharedClient = agentKey{place: "shared client"}
	sharedServer = agentKey{place: "shared server"}
	// otherClient runs on another CPU than the server.
	otherClient = agentKey{place: "shared client on another CPU"}
)

// keysOf returns the keys of a path's own client and server.
func keysOf(p suites.Path) (client, server agentKey) {
	return agentKey{lab: p.Lab, place: p.Client}, agentKey{p.Lab, p.Server, p.Listen}
}

func newTestbed(o Options) (*testbed, error) {
	cpus, err := o.CPUs.Resolve()
	return &testbed{
		cluster: o.Cluster, store: o.Store, cpus: cpus, counting: o.counting(), labs: map[lab.Options]*lab.Lab{},
		failed: map[lab.Options]error{}, agents: map[agentKey]*load.Agent{}, notes: map[lab.Options]string{},
		listening: map[agentKey]bool{},
	}, err
}

// encloses reports whether the agents of a lab's places run in guests or containers.
func encloses(o lab.Options) bool { return o.Guests || o.Topology == lab.TopologyDocker }

// A lab with so many services, or so many rules of a policy, takes seconds to build.
const manyServices, manyRules = 10_000, 10_000

// keeps reports whether a lab is kept for all instances, since it takes seconds to build.
func keeps(o lab.Options) bool {
	return encloses(o) || o.Services >= manyServices || o.PolicyRules >= manyRules
}

// builders is the number of labs that are built or removed at once: most of that time the
// kernel waits for its readers.
const builders = 8

// lab returns the lab with these options. A failure to build it, or to start its VMs, is final.
func (t *testbed) lab(ctx context.Context, o lab.Options) (*lab.Lab, error) {
	if err := t.build(ctx, []lab.Options{o}); err != nil {
		return nil, err
	}
	return t.labs[o], t.failed[o]
}

// build builds the labs with these options that do not exist, several at once. The errors of labs that
// cannot be built are in t.failed. It returns an error only if ctx ends.
func (t *testbed) build(ctx context.Context, all []lab.Options) error {
	if t.cluster != nil {
		return ctx.Err()
	}
	var missing []lab.Options
	for _, o := range all {
		if t.labs[o] == nil && t.failed[o] == nil && !slices.Contains(missing, o) {
			missing = append(missing, o)
		}
	}
	var mu sync.Mutex // of the maps
	first := t.built
	t.built += len(missing)
	together(len(missing), builders, func(i int) {
		named := missing[i]
		named.Name = fmt.Sprintf("bench-%d-%d", os.Getpid(), first+i)
		l, err := t.store.Up(ctx, named)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			t.failed[missing[i]] = err
			return
		}
		t.labs[missing[i]] = l
	})
	return ctx.Err()
}

// remove removes the labs that a function selects.
func (t *testbed) remove(which func(lab.Options) bool) error {
	var labs []*lab.Lab
	for _, o := range slices.Collect(maps.Keys(t.labs)) {
		if which(o) {
			labs = append(labs, t.labs[o])
			delete(t.labs, o)
		}
	}
	errs := make([]error, len(labs))
	together(len(labs), builders, func(i int) { errs[i] = labs[i].Close() })
	return errors.Join(errs...)
}

// guestTimeout limits the start of an agent in a VM, which boots for it, beside others.
const guestTimeout = 3 * time.Minute

// agent returns the agent with a key, and starts it if it does not run: in its place of a lab, or, if paths share it,
// in the lab's first place. One that runs on another CPU than the server joins the others in their control group.
func (t *testbed) agent(ctx context.Context, l *lab.Lab, key agentKey) (*load.Agent, error) {
	if a, ok := t.agents[key]; ok {
		return a, nil
	}
	var o load.AgentOptions
	if t.cluster != nil {
		o = t.cluster.Agent(key.place)
	} else {
		place := key.place
		o = t.agentOptions(key.listen.IsValid() || key == sharedServer)
		if key.lab.Guests {
			o.Timeout = guestTimeout
		}
		if key == otherClient {
			var err error
			if o.CPU, err = t.cpus.Other(); err != nil {
				return nil, err
			}
			l = t.home
		}
		if key.lab == (lab.Options{}) {
			place, t.home = l.Places()[0], l
		}
		o.Start = func(cmd *exec.Cmd) error { return l.Start(place, cmd) }
	}
	a, err := load.StartAgent(ctx, o)
	if err != nil {
		if key.lab.Guests { // a further attempt may take minutes
			t.failed[key.lab] = err
		}
		return nil, err
	}
	if key.listen.IsValid() {
		if err := a.Listen(ctx, key.listen); err != nil {
			return nil, errors.Join(err, a.Close())
		}
	}
	t.agents[key] = a
	return a, nil
}

func (t *testbed) agentOptions(server bool) load.AgentOptions {
	o := load.AgentOptions{CPU: t.cpus.Client, Priority: clientPriority}
	if server {
		o.CPU, o.Priority = t.cpus.Server, serverPriority
	}
	if !t.counting {
		o.Priority = 0
	}
	return o
}

// reset ends the agents of a path after a failed sample, which may have left them in
// the middle of a run. Agents that it shares with others are replaced if they have ended.
func (t *testbed) reset(p suites.Path) error {
	client, server := keysOf(p)
	served := t.agents[sharedServer] != nil
	err := t.closeAgents(func(key agentKey, a *load.Agent) bool {
		return key == client || key == server || key.lab == (lab.Options{}) && a.Err() != nil
	})
	if served && t.agents[sharedServer] == nil {
		clear(t.listening)
	}
	if t.peer != nil {
		err = errors.Join(err, t.peer.hangUp())
	}
	return err
}

func (t *testbed) closeAgents(which func(key agentKey, a *load.Agent) bool) error {
	var errs []error
	for key, a := range t.agents {
		if which(key, a) {
			errs = append(errs, a.Close())
			delete(t.agents, key)
		}
	}
	return errors.Join(errs...)
}

// offloads adds the offloads of the pods' devices to a run's, by link mode.
func (t *testbed) offloads(into map[string]string) error {
	for o, l := range t.labs {
		ns, err := l.Namespace(lab.PodA)
		if err != nil {
			continue // no pods, or VMs
		}
		offloads, err := rtnl.In(ns).Offloads(lab.IfName)
		if err != nil {
			return err
		}
		for name, on := range offloads {
			into[o.Link+" "+name] = map[bool]string{true: "on", false: "off"}[on]
		}
	}
	return nil
}

// setPriorities gives real-time priorities to the programs that forward packets in the
// labs. Agents set their own.
func (t *testbed) setPriorities() error {
	if !t.counting {
		return nil
	}
	inodes := map[uint64]bool{}
	for _, l := range t.labs {
		for _, place := range l.Places() {
			ns, err := l.Namespace(place)
			if err != nil {
				return err
			}
			inode, err := ns.Inode()
			if err != nil {
				return err
			}
			inodes[inode] = true
		}
	}
	processes, err := host.Processes(inodes)
	for _, a := range t.agents {
		processes = slices.DeleteFunc(processes, func(pid int) bool { return pid == a.PID() })
	}
	for _, pid := range processes {
		err = errors.Join(err, host.SetPriority(pid, relayPriority))
	}
	return err
}

// hangUp ends agents: all of them, or all but those in guests and containers.
func (t *testbed) hangUp(all bool) error {
	clear(t.listening)
	t.home = nil
	return t.closeAgents(func(key agentKey, _ *load.Agent) bool { return all || !encloses(key.lab) })
}

// renew ends the agents and labs of an instance, but those that are kept.
func (t *testbed) renew() error {
	return errors.Join(t.hangUp(false), t.remove(func(o lab.Options) bool { return !keeps(o) }))
}

// release ends all agents and labs.
func (t *testbed) release() error {
	err := t.hangUp(true)
	if t.peer != nil {
		err = errors.Join(err, t.peer.disconnect())
	}
	if t.plugins != nil {
		t.plugins.Close()
		t.plugins = nil
	}
	return errors.Join(err, t.remove(func(lab.Options) bool { return true }))
}

// Close ends all agents, also those of the peer, and labs.
func (t *testbed) Close() error {
	err := t.release()
	if t.peer != nil {
		err = errors.Join(err, t.peer.close())
	}
	return err
}
