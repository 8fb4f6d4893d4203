// SPDX-License-Identifier: Apache-2.0

// Package policybench measures how long a network policy takes from the begin of a change to the first connection that is treated
// as it says. Each sample ends with connections whose evidence shows that the policy is that of the lab again.
package policybench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/bench/connect"
	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/result"
)

// proofs are the connections at the end of a sample.
const proofs = 20

// Changes of a sample of one rule: until changeTime is over, but mostChanges at most and two at least, there and back.
const (
	changeTime  = 300 * time.Millisecond
	mostChanges = 100
)

// Times of connections while a change is awaited. One that is denied is given up after openTime, and the next begins. One that
// should open is taken as denied after deniedTime, which no scheduler exceeds often, if the next one does not open either.
const (
	openTime   = 2 * time.Millisecond
	deniedTime = 100 * time.Millisecond
	timeout    = 2 * time.Minute
)

// denied is the address that the policy of a lab denies.
var denied = netip.AddrPortFrom(lab.PodAIPs[0], lab.DeniedPort)

// Task is one sample to take.
type Task struct {
	// Lab is of topology pod-links, with a network policy.
	Lab *lab.Lab
	// Path is that of the row.
	Path evidence.Path
	// Workload is result.WorkloadPolicyApply or result.WorkloadPolicyChange.
	Workload string
	// CPU is the one that the client's thread runs on.
	CPU int
}

// Sample is the measurement of a task with its evidence.
type Sample struct {
	Measurement load.Measurement
	Evidence    result.Evidence
}

// Run takes a sample. The lab has the policy with which it was built then. If evidence contradicts the path, the error is an
// [*evidence.Error].
func (t Task) Run(ctx context.Context) (s Sample, err error) {
	watch, err := clock.OpenMachine()
	if err != nil {
		return s, err
	}
	defer watch.Close()
	c, err := connect.New(t.Lab, t.Path, t.CPU, t.Path.Listen, denied)
	if err != nil {
		return s, err
	}
	defer c.Close()
	m := &s.Measurement
	m.Workload, m.Flows, m.Histogram = t.Workload, 1, hdrhistogram.New(1, int64(10*time.Minute), 3)
	if err := watch.Begin(); err != nil {
		return s, err
	}
	started := time.Now()
	if t.Workload == result.WorkloadPolicyApply {
		err = t.apply(ctx, c, m)
	} else {
		err = t.change(ctx, c, m)
	}
	if err != nil {
		return s, err
	}
	m.Units, m.Unit, m.CPUUnit = float64(m.Count), result.UnitMicroseconds, "change"
	m.Rate = float64(m.Histogram.ValueAtPercentile(50)) / 1e3
	m.Seconds = time.Since(started).Seconds()
	if m.Machine, err = watch.End(); err != nil {
		return s, err
	}
	s.Evidence, err = t.prove(c)
	return s, err
}

// apply removes the policy, and measures the time of writing it.
func (t Task) apply(ctx context.Context, c *connect.Client, m *load.Measurement) error {
	if err := t.Lab.ClearPolicy(ctx); err != nil {
		return err
	}
	took, err := await(ctx, c, false, func() error { return t.Lab.WritePolicy(ctx) })
	if err != nil {
		return err
	}
	m.Count++
	return m.Histogram.RecordValue(int64(took))
}

// change adds a rule to the policy and removes it again.
func (t Task) change(ctx context.Context, c *connect.Client, m *load.Measurement) error {
	for started := time.Now(); m.Count < 2 || m.Count < mostChanges && time.Since(started) < changeTime; {
		for _, allow := range []bool{true, false} {
			took, err := await(ctx, c, allow, func() error { return t.Lab.AllowDenied(ctx, allow) })
			if err != nil {
				return err
			}
			if err := m.Histogram.RecordValue(int64(took)); err != nil {
				return err
			}
			m.Count++
		}
	}
	return nil
}

// await makes a change that allows or denies connections, and opens one after the other all the while. It returns the time from
// the begin of the change to the end of the first that opens, or to the begin of the first that does not.
func await(ctx context.Context, c *connect.Client, allow bool, change func() error) (took time.Duration, err error) {
	within := map[bool]time.Duration{true: openTime, false: deniedTime}[allow]
	var changed chan error
	begun := make(chan time.Time, 1)
	err = c.On(func() error {
		if open, err := c.Try(denied, within); err != nil || open == allow {
			return errors.Join(err, fmt.Errorf("%s before the change: open %t", denied, open))
		}
		changed = make(chan error, 1)
		go func() { // on another CPU, which may take its time to begin
			begun <- time.Now()
			changed <- change()
		}()
		for deadline := time.Now().Add(timeout); time.Now().Before(deadline) && ctx.Err() == nil; {
			at := time.Now()
			open, err := c.Try(denied, within)
			if open == allow && !allow {
				open, err = c.Try(denied, within)
			}
			switch {
			case err != nil:
				return err
			case open != allow:
				continue
			case allow:
				at = time.Now()
			}
			took = max(at.Sub(<-begun), 0)
			return nil
		}
		return fmt.Errorf("the change of the policy had no effect within %v", timeout)
	})
	if changed != nil {
		err = errors.Join(err, <-changed)
	}
	return took, err
}

// prove opens connections that the policy allows, and returns their evidence.
func (t Task) prove(c *connect.Client) (result.Evidence, error) {
	recorder := evidence.Recorder{Lab: t.Lab}
	if err := recorder.Start(); err != nil {
		return result.Evidence{}, err
	}
	var proof load.Measurement
	err := c.On(func() error {
		for range proofs {
			o, err := c.Open(t.Path.Connect)
			if err != nil {
				return err
			}
			proof = o.Proof(proofs)
			o.Close()
		}
		return nil
	})
	if err != nil {
		return result.Evidence{}, err
	}
	seen, err := recorder.Stop(evidence.Flow{Path: t.Path, Measurement: proof})
	if err != nil {
		return result.Evidence{}, err
	}
	return seen[0], evidence.Contradiction(seen[0])
}
