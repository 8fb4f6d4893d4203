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
	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// testbed holds the labs of a run and the agents in them. Both are started when they are first needed.
type testbed struct {
	store    lab.Store
	cpus     host.CPUPair
	counting bool // instructions
	labs     map[lab.Options]*lab.Lab
	built    int // labs so far, for their names
	failed   map[lab.Options]error
	agents   map[agentKey]*load.Agent
	cluster  Cluster                // has the pods of all agents; nil if labs have them
	peer     *peer                  // the other machine, or nil
	notes    map[lab.Options]string // remarks on all rows of a lab
	plugins  *cnibench.Testbed      // runs CNI plugins, nil until one is called
	// listening are the addresses of the shared server, and home is the lab in whose control group the shared agents are.
	listening map[agentKey]bool
	home      *lab.Lab
}

// agentKey identifies an agent: its place, and its address if it is a server. Agents that paths of several labs
// share lack both lab and place.
type agentKey struct {
	lab    lab.Options
	place  string
	listen netip.AddrPort
}

// Keys of the agents that paths share.
var (
	sharedClient = agentKey{place: "shared client"}
	sharedServer = agentKey{place: "shared server"}
	otherClient  = agentKey{place: "shared client on another CPU"} // runs on another CPU than the server
)

func newTestbed(o Options) (*testbed, error) {
	cpus, err := o.CPUs.Resolve()
	if err != nil {
		return nil, err
	}
	return &testbed{
		cluster: o.Cluster, store: o.Store, cpus: cpus, counting: o.counting(), labs: map[lab.Options]*lab.Lab{},
		failed: map[lab.Options]error{}, agents: map[agentKey]*load.Agent{}, notes: map[lab.Options]string{},
		listening: map[agentKey]bool{},
	}, nil
}

// builders is the number of labs that are built or removed at once: most of that time the kernel waits for its readers.
const builders = 8

// lab returns the lab with these options. A failure to build it, or to start its VMs, is final.
func (t *testbed) lab(ctx context.Context, o lab.Options) (*lab.Lab, error) {
	if err := t.build(ctx, []lab.Options{o}); err != nil {
		return nil, err
	}
	return t.labs[o], t.failed[o]
}

// build builds the missing labs with these options, several at once. It records failures in t.failed, and returns an
// error only if ctx ends.
func (t *testbed) build(ctx context.Context, all []lab.Options) error {
	if t.cluster != nil {
		return ctx.Err()
	}
	var missing []lab.Options
	begun := map[lab.Options]bool{}
	for _, o := range all {
		if t.labs[o] == nil && t.failed[o] == nil && !begun[o] {
			begun[o], missing = true, append(missing, o)
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

func (t *testbed) remove(all []lab.Options) error {
	var labs []*lab.Lab
	for _, o := range all {
		if l := t.labs[o]; l != nil {
			labs = append(labs, l)
			delete(t.labs, o)
		}
	}
	errs := make([]error, len(labs))
	together(len(labs), builders, func(i int) { errs[i] = labs[i].Close() })
	return errors.Join(errs...)
}

// guestTimeout limits the start of an agent in a VM, which boots for it while others boot.
const guestTimeout = 3 * time.Minute

// agent returns the agent with a key, and starts it if it does not run. It starts in its place of a lab, or, if paths
// share it, in the lab's first place. An agent on another CPU than the server joins the others in their control group.
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
		o = load.AgentOptions{CPU: t.cpus.Server, Priority: serverPriority}
	}
	if !t.counting {
		o.Priority = 0
	}
	if t.cpus != host.AnyCPU {
		o.Congestion = lab.Congestion
	}
	return o
}

// reset ends the agents of a path after a failed sample, which may have left them in the middle of a run. Shared
// agents are replaced if they have ended.
func (t *testbed) reset(p suites.Path) error {
	own := []agentKey{{p.Lab, p.Client, netip.AddrPort{}}, {p.Lab, p.Server, p.Listen}}
	shared := []agentKey{sharedClient, sharedServer, otherClient}
	served := t.agents[sharedServer] != nil
	errs := []error{t.closeAgents(func(key agentKey, a *load.Agent) bool {
		return slices.Contains(own, key) || slices.Contains(shared, key) && a.Err() != nil
	})}
	if served && t.agents[sharedServer] == nil {
		clear(t.listening)
	}
	if t.peer != nil {
		errs = append(errs, t.peer.hangUp())
	}
	return errors.Join(errs...)
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

func (t *testbed) pluginTestbed(ctx context.Context, o lab.Options) (*cnibench.Testbed, error) {
	if t.plugins != nil {
		return t.plugins, nil
	}
	l, err := t.lab(ctx, o)
	if err != nil {
		return nil, err
	}
	if t.plugins, err = cnibench.NewTestbed(l); err != nil {
		return nil, err
	}
	t.notes[o] = t.plugins.Note()
	return t.plugins, nil
}

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

// setPriorities gives real-time priorities to the programs that forward packets. Agents set their own.
func (t *testbed) setPriorities() error {
	if !t.counting {
		return nil
	}
	agents := map[int]bool{}
	for _, a := range t.agents {
		agents[a.PID()] = true
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
	processes, err := netns.Processes(func(_ int, inode uint64) bool { return inodes[inode] })
	if err != nil {
		return err
	}
	for _, pid := range processes {
		if !agents[pid] {
			if err := host.SetPriority(pid, relayPriority); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *testbed) hangUp(all bool) error {
	clear(t.listening)
	t.home = nil
	return t.closeAgents(func(key agentKey, _ *load.Agent) bool { return all || !encloses(key.lab) })
}

func (t *testbed) renew() error {
	err := t.hangUp(false)
	return errors.Join(err, t.remove(slices.DeleteFunc(slices.Collect(maps.Keys(t.labs)), keeps)))
}

func (t *testbed) release() error {
	errs := []error{t.hangUp(true)}
	if t.peer != nil {
		errs = append(errs, t.peer.disconnect())
	}
	if t.plugins != nil {
		t.plugins.Close()
		t.plugins = nil
	}
	return errors.Join(append(errs, t.remove(slices.Collect(maps.Keys(t.labs))))...)
}

// Close ends all agents and labs, the peer's too.
func (t *testbed) Close() error {
	err := t.release()
	if t.peer != nil {
		err = errors.Join(err, t.peer.close())
	}
	return err
}
