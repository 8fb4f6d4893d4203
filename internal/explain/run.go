// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mustang/internal/bench/host"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/suggest"
)

// Bounds and default of [Options.Count].
const (
	DefaultCount = 1000
	MinCount     = 100
	MaxCount     = 20000
)

type effort struct {
	rounds   int  // runs with tracing
	untraced int  // runs without, before each of them
	counters bool // whether the kernel's counters are read
}

// Options configures a run.
type Options struct {
	Suite, Row   string       // as bench --list names the path
	Count        int          // of transactions that are traced
	Instructions bool         // whether the clock counts instructions, see [clock.CheckCounting]
	CPUs         host.CPUPair // of client and server
	Store        lab.Store    // where the lab is recorded
}

// Validate returns an error if the options make no sense.
func (o Options) Validate() error {
	_, err := o.path()
	return err
}

func (o Options) path() (suites.Path, error) {
	if o.Count < MinCount || o.Count > MaxCount {
		return suites.Path{}, fmt.Errorf("invalid count %d: want %d to %d", o.Count, MinCount, MaxCount)
	}
	list, err := suites.Lookup(o.Suite)
	if err != nil {
		return suites.Path{}, err
	}
	var known []string
	for _, s := range list {
		for _, p := range s.Paths {
			switch known = append(known, p.ID); {
			case p.ID != o.Row:
			case p.Plugin != nil:
				return p, fmt.Errorf("row %q calls a plugin: it exchanges no packets to follow", o.Row)
			case p.Lab.Sockmap:
				return p, fmt.Errorf("row %q joins sockets: its data is in no packets to follow", o.Row)
			case p.Lab.Guests:
				return p, fmt.Errorf("row %q ends in virtual machines, where packets cannot be followed", o.Row)
			case p.TwoCPUs && o.Instructions:
				return p, fmt.Errorf("row %q uses two CPUs: instructions are counted on one", o.Row)
			default:
				return p, nil
			}
		}
	}
	return suites.Path{}, fmt.Errorf("suite %[1]s: no row %[2]q: \"mustang bench --list %[1]s\" lists them%[3]s", o.Suite,
		o.Row, suggest.Text(o.Row, known))
}

type run struct {
	options        Options
	number         int
	path           suites.Path
	effort         effort
	lab            *lab.Lab
	built          bool // whether the lab is this run's own
	client, server *load.Agent
	places         []string          // each with a namespace of its own
	inodes         []uint64          // of their namespaces
	known          map[string]string // places, by each place with the same namespace
	devices        map[device]string
	attached       []attachment
	counters       Counters
	tracer         *tracer
	recording      recording
}

func newRun(o Options, number int, p suites.Path, e effort) *run {
	return &run{
		options: o, number: number, path: p, effort: e, known: map[string]string{}, devices: map[device]string{},
	}
}

func (r *run) open(ctx context.Context) (err error) {
	if err := r.build(ctx); err != nil {
		return err
	}
	if r.effort.counters {
		r.counters, err = r.count(ctx)
	} else {
		_, err = r.read() // the devices' names
	}
	if err != nil {
		return err
	}
	r.tracer, err = r.openTracer()
	return err
}

func (r *run) build(ctx context.Context) (err error) {
	if r.lab == nil {
		options := r.path.Lab
		options.Name = fmt.Sprintf("explain-%d-%d", os.Getpid(), r.number)
		if r.lab, err = r.options.Store.Up(ctx, options); err != nil {
			return err
		}
		r.built = true
	}
	for _, place := range r.lab.Places() { // some share a namespace
		ns, err := r.lab.Namespace(place)
		if err != nil {
			return err
		}
		inode, err := ns.Inode()
		if err != nil {
			return err
		}
		at := slices.Index(r.inodes, inode)
		if at < 0 {
			at, r.places, r.inodes = len(r.places), append(r.places, place), append(r.inodes, inode)
		}
		r.known[place] = r.places[at]
	}
	if err := r.findAttachments(); err != nil {
		return err
	}
	cpus, err := r.cpus()
	if err != nil {
		return err
	}
	if r.server, err = r.agent(ctx, r.path.Server, cpus.Server); err != nil {
		return err
	}
	if err = r.server.Listen(ctx, r.path.Listen); err != nil {
		return err
	}
	r.client, err = r.agent(ctx, r.path.Client, cpus.Client)
	return err
}

// cpus returns the CPUs of client and server: two different ones if the path requires them.
func (r *run) cpus() (host.CPUPair, error) {
	cpus, err := r.options.CPUs.Resolve()
	if err == nil && r.path.TwoCPUs {
		cpus.Client, err = cpus.Other()
	}
	return cpus, err
}

func (r *run) agent(ctx context.Context, place string, cpu int) (*load.Agent, error) {
	o := load.AgentOptions{CPU: cpu, Start: func(cmd *exec.Cmd) error { return r.lab.Start(place, cmd) }}
	if r.options.Instructions { // nothing else interrupts a transaction
		o.Priority = 1
	}
	return load.StartAgent(ctx, o)
}

func (r *run) close() (err error) {
	if r.tracer != nil {
		err = r.tracer.close()
	}
	for _, a := range []*load.Agent{r.client, r.server} {
		if a != nil {
			err = errors.Join(err, a.Close())
		}
	}
	for _, a := range r.attached {
		err = errors.Join(err, a.program.Close())
	}
	if r.built {
		err = errors.Join(err, r.lab.Close())
	}
	return err
}

func (r *run) perRound() int { return r.options.Count / r.effort.rounds }

func (r *run) transact(ctx context.Context, count int) (load.Measurement, error) {
	return r.client.Run(ctx, load.Spec{
		Workload: load.TCPRR, Target: r.path.Connect, Settle: settle, Limit: uint64(count),
	})
}

func (r *run) finish(ctx context.Context) (p path, err error) {
	if _, r.recording.doubled, err = r.record(ctx, slices.Concat(r.tracer.each, r.tracer.doubles)); err != nil {
		return p, err
	}
	n := names{server: r.known[r.path.Server], places: r.places, devices: r.devices}
	for _, a := range r.attached {
		n.programs = append(n.programs, a.name)
	}
	return newPath(r.recording, n)
}

func (r *run) explanation(p path, costs map[string]float64) (Explanation, error) {
	e := p.explanation(costs)
	e.Schema, e.Suite, e.Row, e.Clock = Schema, r.options.Suite, r.options.Row, ClockTime
	if r.options.Instructions {
		e.Clock = ClockInstructions
	}
	var name unix.Utsname
	err := unix.Uname(&name)
	e.Kernel, e.Counters = unix.ByteSliceToString(name.Release[:]), r.counters
	return e, err
}

func (r *run) record(ctx context.Context, programs []attacher) (m load.Measurement, events []explainEvent, err error) {
	defer func() { err = errors.Join(err, r.tracer.stop()) }()
	if err := r.tracer.start(programs); err != nil {
		return m, nil, err
	}
	if m, err = r.transact(ctx, r.perRound()); err != nil {
		return m, nil, err
	}
	events, err = r.tracer.events()
	return m, events, err
}

type reading struct {
	devices  map[device][2]uint64 // transmitted, received
	programs map[ebpf.ProgramID]ebpf.ProgramStats
}

func (r *run) count(ctx context.Context) (c Counters, err error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return c, fmt.Errorf("count the runs of BPF programs: %w", err)
	}
	defer func() { err = errors.Join(err, stats.Close()) }()
	before, err := r.read()
	if err != nil {
		return c, err
	}
	m, err := r.transact(ctx, r.options.Count)
	if err != nil {
		return c, err
	}
	after, err := r.read()
	if err != nil {
		return c, err
	}
	n := float64(r.options.Count + settle)
	for d, now := range after.devices {
		if was := before.devices[d]; now != was {
			c.Devices = append(c.Devices, DeviceCounter{
				r.places[d.place-1], r.devices[d], float64(now[0]-was[0]) / n, float64(now[1]-was[1]) / n,
			})
		}
	}
	slices.SortFunc(c.Devices, func(a, b DeviceCounter) int {
		return cmp.Or(cmp.Compare(a.Place, b.Place), cmp.Compare(a.Device, b.Device))
	})
	for _, a := range r.attached {
		now, was := after.programs[a.id], before.programs[a.id]
		delete(after.programs, a.id) // other devices may have it too
		if runs := float64(now.RunCount - was.RunCount); now.RunCount > was.RunCount {
			c.Programs = append(c.Programs, ProgramCounter{a.name, runs / n, float64(now.Runtime-was.Runtime) / runs})
		}
	}
	slices.SortFunc(c.Programs, func(a, b ProgramCounter) int { return cmp.Compare(a.Name, b.Name) })
	c.Softirqs = float64(m.Machine.NetRX+m.Machine.NetTX) / float64(r.options.Count)
	return c, nil
}

func (r *run) read() (reading, error) {
	out := reading{map[device][2]uint64{}, map[ebpf.ProgramID]ebpf.ProgramStats{}}
	err := r.eachPlace(func(i int, ns *netns.Namespace) error {
		devices, err := rtnl.In(ns).Devices()
		for _, d := range devices {
			key := device{uint8(i + 1), uint32(d.Index)}
			r.devices[key], out.devices[key] = d.Name, [2]uint64{d.TxPackets, d.RxPackets}
		}
		return err
	})
	for _, a := range r.attached {
		stats, statsErr := a.program.Stats()
		if statsErr != nil {
			return out, statsErr
		}
		out.programs[a.id] = *stats
	}
	return out, err
}
