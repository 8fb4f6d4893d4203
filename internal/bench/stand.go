// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"time"

	"mustang/internal/lab"
	"mustang/internal/traffic"
)

// stand is what a run keeps standing: a lab for each way that its paths need,
// and the agents in them.
type stand struct {
	store lab.Store
	exe   string
	cpus  CPUPair
	// counting is whether instructions are counted.
	counting bool
	labs     map[lab.Options]*lab.Lab
	agents   map[agentKey]*traffic.Agent
	failed   map[lab.Options]error
	// peer is the other machine, if there is one.
	peer *peerStand
	// remarks are what readers of the rows of a lab should know.
	remarks map[lab.Options]string
	// plugins is where CNI plugins run, nil until one does.
	plugins *pluginStand
}

// agentKey names an agent: where it runs, and where it listens if it serves.
type agentKey struct {
	lab    lab.Options
	place  string
	listen netip.AddrPort
}

func newStand(o Options) (*stand, error) {
	cpus, err := o.CPUs.resolve()
	if err != nil {
		return nil, err
	}
	return &stand{
		store: o.Store, exe: o.Exe, cpus: cpus, counting: o.counts(), labs: map[lab.Options]*lab.Lab{},
		agents: map[agentKey]*traffic.Agent{}, failed: map[lab.Options]error{},
		remarks: map[lab.Options]string{},
	}, nil
}

// lab returns the lab that the options describe, built when it is first asked
// for. A lab that could not be built is not tried again, nor one whose virtual
// machines don't start.
func (s *stand) lab(ctx context.Context, o lab.Options) (*lab.Lab, error) {
	if err := s.failed[o]; err != nil {
		return nil, err
	}
	if l, ok := s.labs[o]; ok {
		return l, nil
	}
	named := o
	named.Name = fmt.Sprintf("bench-%d-%d", os.Getpid(), len(s.labs)+len(s.failed))
	l, err := s.store.Up(ctx, named)
	if err != nil {
		s.failed[o] = err
		return nil, err
	}
	s.labs[o] = l
	if o.Overlay == "" || o.Guests || s.counting {
		return l, nil
	}
	if s.remarks[o], err = l.ChecksumFault(ctx); err != nil {
		s.failed[o] = err
		delete(s.labs, o)
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// agent returns the agent of a key, started when it is first asked for.
func (s *stand) agent(ctx context.Context, key agentKey) (*traffic.Agent, error) {
	if a, ok := s.agents[key]; ok {
		return a, nil
	}
	l, err := s.lab(ctx, key.lab)
	if err != nil {
		return nil, err
	}
	cpu := s.cpus.Client
	if key.listen.IsValid() {
		cpu = s.cpus.Server
	}
	stop := func() bool { return true }
	a, err := traffic.StartAgent(traffic.AgentOptions{
		Exe: s.exe, CPU: cpu, Priority: s.priority(key), Timeout: agentTimeout(key.lab),
		Start: func(cmd *exec.Cmd) error {
			if err := l.Start(key.place, cmd); err != nil {
				return err
			}
			// One that is not ready is not waited for when ctx ends: a boot may take long.
			stop = context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
			return nil
		},
	})
	stop()
	if err != nil {
		if key.lab.Guests { // each try may take a minute
			s.failed[key.lab] = err
		}
		return nil, err
	}
	if key.listen.IsValid() {
		if err := a.Listen(ctx, key.listen); err != nil {
			return nil, errors.Join(err, a.Close())
		}
	}
	s.agents[key] = a
	return a, nil
}

// guestTimeout is how long a virtual machine may take until the agent in it runs,
// with others that boot beside it.
const guestTimeout = 3 * time.Minute

// agentTimeout is how long an agent may take to start, 0 for the usual.
func agentTimeout(o lab.Options) time.Duration {
	if o.Guests {
		return guestTimeout
	}
	return 0
}

// ends returns the agents at the two ends of a path.
func (s *stand) ends(ctx context.Context, p path) (client, server *traffic.Agent, err error) {
	if server, err = s.agent(ctx, agentKey{p.lab, p.server, p.listen}); err != nil {
		return nil, nil, err
	}
	client, err = s.agent(ctx, agentKey{p.lab, p.client, netip.AddrPort{}})
	return client, server, err
}

// drop forgets the agents of a path, which a failed sample may have left in the
// middle of something. The next sample starts new ones.
func (s *stand) drop(p path) error {
	var errs []error
	for _, key := range []agentKey{{p.lab, p.client, netip.AddrPort{}}, {p.lab, p.server, p.listen}} {
		if a, ok := s.agents[key]; ok {
			errs = append(errs, a.Close())
			delete(s.agents, key)
		}
	}
	if s.peer != nil {
		errs = append(errs, s.peer.hangUp())
	}
	return errors.Join(errs...)
}

// offloads notes the offloads of the pods' devices, by link mode.
func (s *stand) offloads(into map[string]string) error {
	for o, l := range s.labs {
		ns, err := l.Namespace(lab.PodA)
		if err != nil {
			continue // no pods, or virtual machines
		}
		on, err := ns.Offloads(lab.IfName)
		if err != nil {
			return err
		}
		for name, value := range on {
			into[o.Link+" "+name] = map[bool]string{true: "on", false: "off"}[value]
		}
	}
	return nil
}

// Close ends all agents and labs.
func (s *stand) Close() error {
	var errs []error
	if s.peer != nil {
		errs = append(errs, s.peer.close())
	}
	for _, a := range s.agents {
		errs = append(errs, a.Close())
	}
	s.endPlugins()
	for _, l := range s.labs {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
