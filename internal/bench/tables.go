// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/bench/evidence"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/result"
	"mustang/internal/service"
)

func divide(rows []*measuredRow, fits func(suites.Workload) bool) (fitting, others []*measuredRow) {
	for _, row := range rows {
		if fits(row.spec.workload) {
			fitting = append(fitting, row)
		} else {
			others = append(others, row)
		}
	}
	return fitting, others
}

// Numbers of rounds for tables of services. First packets have firstPacketRounds: a sample takes a tenth of a second,
// and tails need many. Other workloads have at most tableRounds, of seconds each. A quick run has quickTableRounds.
const firstPacketRounds, tableRounds, quickTableRounds = 30, 10, 3

func (r *run) tables(ctx context.Context, rows []*measuredRow) error {
	if pending(rows) == 0 {
		return nil
	}
	// agents listen where tables do
	if err := errors.Join(r.testbed.hangUp(false), r.testbed.build(ctx, labsOf(rows))); err != nil {
		return err
	}
	rounds := cmp.Or(r.options.Rounds, firstPacketRounds)
	if r.options.Quick {
		rounds = min(rounds, quickTableRounds)
	}
	first, others := divide(rows, func(w suites.Workload) bool {
		return strings.HasPrefix(w.Name, result.WorkloadFirstPacket)
	})
	if pending(first) > 0 {
		if err := r.rounds(ctx, first, rounds); err != nil {
			return err
		}
	}
	if pending(others) == 0 {
		return nil
	}
	return r.rounds(ctx, others, min(rounds, tableRounds))
}

const (
	firstPackets = 1000 // the number of connections of a sample of first packets
	// proofs is the number of connections at the end of other samples that show that services or a policy work.
	proofs = 20
	// mostChanges bounds the changes of a sample, there and back: until their time is over, but two at least.
	mostChanges = 100
	// serviceTime is how long a measurement changes services, and ruleTime how long it changes a policy's rule.
	serviceTime, ruleTime = time.Second, 300 * time.Millisecond
	changeTimeout         = 2 * time.Minute // limits the time until a change takes effect
)

// tableSample is one sample of a table of services or of a network policy: connections are opened one by one.
type tableSample struct {
	load.Measurement
	*connector
	path evidence.Path // the row's path
}

// takeTables measures a table of services, or changes of a network policy. The lab has the services and the policy
// with which it was built then.
func (t *testbed) takeTables(ctx context.Context, row rowSpec) (s sample, err error) {
	l, err := t.lab(ctx, row.path.Lab)
	if err != nil {
		return s, err
	}
	watch, err := clock.OpenMachine()
	if err != nil {
		return s, err
	}
	defer watch.Close()
	taken := &tableSample{path: row.path.Path, Measurement: load.Measurement{
		Workload: row.workload.Name, Flows: 1, Histogram: hdrhistogram.New(1, int64(10*time.Minute), 3),
	}}
	if taken.connector, err = connect(l, t.cpus.Client, taken.path); err != nil {
		return s, err
	}
	defer taken.close()
	runtime.GC() // leaves no garbage to collect
	if err := errors.Join(taken.forget(), watch.Begin()); err != nil {
		return s, err
	}
	started := time.Now()
	end := func() (err error) {
		taken.Seconds = time.Since(started).Seconds()
		taken.Machine, err = watch.End()
		return err
	}
	first := strings.HasPrefix(taken.Workload, result.WorkloadFirstPacket)
	if !first {
		if err := errors.Join(taken.work(ctx), end()); err != nil {
			return s, err
		}
	}
	recorder := evidence.Recorder{Lab: l}
	s.evidence, err = recorder.Record(func() (evidence.Flow, error) {
		if first {
			flow, err := taken.connectAll(ctx, firstPackets)
			return flow, errors.Join(err, end())
		}
		return taken.connectAll(ctx, proofs)
	})
	s.measurement = taken.Measurement
	return s, err
}

func (t *tableSample) work(ctx context.Context) error {
	switch t.Workload {
	case result.WorkloadServiceProgram:
		return t.program(ctx)
	case result.WorkloadServiceMemory:
		return t.memory(ctx)
	case result.WorkloadServiceChange:
		return t.changes(ctx, serviceTime, t.changeService)
	case result.WorkloadPolicyChange:
		return t.changes(ctx, ruleTime, t.changeRule)
	}
	err := t.lab.ClearPolicy(ctx)
	if err == nil {
		err = t.change(ctx, func() error { return t.lab.WritePolicy(ctx) }, t.lookFor(false))
	}
	t.setTimes(int(t.Count), "change", 50)
	return err
}

func (t *tableSample) changes(ctx context.Context, within time.Duration,
	thereAndBack func(context.Context) error) error {
	for started := time.Now(); t.Count < 2 || t.Count < mostChanges && time.Since(started) < within; {
		if err := thereAndBack(ctx); err != nil {
			return err
		}
	}
	t.setTimes(int(t.Count), "change", 50)
	return nil
}

// connectAll connects to services picked at random, or to the pod that a policy is for, one after the other. It returns
// the addresses of the last connection as evidence of all. In a sample of first packets, connections are the figures.
func (t *tableSample) connectAll(ctx context.Context, n int) (flow evidence.Flow, err error) {
	targets := []service.Service{{Frontend: t.path.Connect, Backends: service.Backends(t.path.Listen)}}
	if t.path.Lab.Policy == "" {
		all := t.lab.AllServices(lab.OtherBackends)
		targets = slices.DeleteFunc(all, func(s service.Service) bool { return !isOther(s) })
	}
	if len(targets) == 0 {
		return flow, errors.New("the lab lacks other services")
	}
	err = t.on(func() error {
		for range n {
			if err := ctx.Err(); err != nil {
				return err
			}
			s := targets[rand.IntN(len(targets))]
			o, err := t.open(s.Frontend)
			if err != nil {
				return err
			}
			if n == firstPackets {
				_ = t.Histogram.RecordValue(int64(o.took)) // below the limit of a connection
			}
			m := load.Measurement{Workload: load.TCPCRR, Flows: 1, Count: uint64(n)}
			m.ClientLocal, m.ClientPeer = socketNames(o.client)
			m.ServerLocal, m.ServerPeer = socketNames(o.server)
			flow.Measurement = m
			o.close()
			if !leadsTo(s, o) {
				return fmt.Errorf("%s answered for %s", o.at, s.Frontend)
			}
		}
		return nil
	})
	switch {
	case t.Workload == result.WorkloadFirstPacketP99:
		t.setTimes(n, "transaction", 99)
	case n == firstPackets:
		t.setTimes(n, "transaction", 50)
	}
	flow.Path = t.path
	flow.Path.Connect, flow.Path.Listen = flow.Measurement.ClientPeer, flow.Measurement.ServerLocal
	return flow, err
}

func (t *tableSample) setRate(n int, cpuUnit, unit string, rate float64) {
	t.Count, t.Units, t.CPUUnit, t.Unit, t.Rate = uint64(n), float64(n), cpuUnit, unit, rate
}

func (t *tableSample) setTimes(n int, cpuUnit string, percentile float64) {
	t.setRate(n, cpuUnit, result.UnitMicroseconds, float64(t.Histogram.ValueAtPercentile(percentile))/1e3)
}

// look finds out whether a change has taken effect, and when.
type look func() (at time.Time, found bool, err error)

// change makes a change and looks for its effect all the while. It records the time from the begin of the change to
// the time that the first successful look returned.
func (t *tableSample) change(ctx context.Context, change func() error, look look) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	return t.on(func() error {
		switch _, found, err := look(); {
		case err != nil:
			return err
		case found:
			return errors.New("the effect of a change was seen before it")
		}
		begun, changed := make(chan time.Time, 1), make(chan error, 1)
		go func() { // on another CPU, which may take its time to begin
			begun <- time.Now()
			err := change()
			if err != nil {
				cancel()
			}
			changed <- err
		}()
		var at time.Time
		var found bool
		var err error
		for !found && err == nil && ctx.Err() == nil {
			at, found, err = look()
		}
		switch failed := <-changed; {
		case failed != nil:
			return failed
		case err != nil:
			return err
		case !found:
			return fmt.Errorf("a change had no effect within %v", changeTimeout)
		}
		t.Count++
		return t.Histogram.RecordValue(int64(max(at.Sub(<-begun), 0)))
	})
}
