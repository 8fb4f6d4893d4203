// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/nl"
	"mustang/internal/result"
	"mustang/internal/traffic"
)

// Verbs of the CNI spec.
const (
	verbAdd = "ADD"
	verbDel = "DEL"
)

// Bounds of the histogram of calls: 1 ns to 10 minutes, 3 significant digits.
const (
	slowestCall = int64(10 * time.Minute)
	callDigits  = 3
)

// callUnit is what CPU time is divided by.
const callUnit = "call"

// call is one call of a plugin, from its process to its answer.
type call struct {
	program string
	env     []string
	config  []byte

	output []byte
	ended  time.Time
}

// run starts the plugin in the network namespace of the calling thread, as libcni
// does, and waits for its end.
func (c *call) run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, c.program)
	var stdout, stderr bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.env, bytes.NewReader(c.config), &stdout, &stderr
	err := cmd.Run()
	c.ended = time.Now()
	c.output = stdout.Bytes()
	if err == nil {
		return nil
	}
	var told struct{ Msg, Details string }
	if json.Unmarshal(c.output, &told) == nil && told.Msg != "" {
		return errors.New(strings.TrimSpace(told.Msg + " " + told.Details))
	}
	return fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
}

// batch is calls of one verb.
type batch struct {
	verb   string
	host   *nl.Namespace
	calls  []*call
	atOnce bool
	watch  *traffic.MachineWatch
}

// run makes the calls, and returns how long they took. Each of those that are made
// at once counts from the moment at which all of them were let go, as each of those
// who wait for them does.
func (b batch) run(ctx context.Context) (traffic.Measurement, error) {
	if err := b.watch.Begin(); err != nil {
		return traffic.Measurement{}, err
	}
	var began []time.Time
	var err error
	if b.atOnce {
		began, err = b.together(ctx)
	} else {
		began, err = b.inTurn(ctx)
	}
	machine, watchErr := b.watch.End()
	if err := errors.Join(err, watchErr); err != nil {
		return traffic.Measurement{}, err
	}
	return b.measure(began, machine)
}

// inTurn makes one call after the other.
func (b batch) inTurn(ctx context.Context) ([]time.Time, error) {
	var began []time.Time
	return began, b.host.Do(func() error {
		for _, c := range b.calls {
			began = append(began, time.Now())
			if err := c.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", b.verb, err)
			}
		}
		return nil
	})
}

// together makes all calls at once. The threads that make them are in the host's
// namespace before.
func (b batch) together(ctx context.Context) ([]time.Time, error) {
	errs := make([]error, len(b.calls))
	var ready, done sync.WaitGroup
	ready.Add(len(b.calls))
	start := make(chan struct{})
	for i, c := range b.calls {
		done.Go(func() {
			var once sync.Once
			defer once.Do(ready.Done)
			errs[i] = b.host.Do(func() error {
				once.Do(ready.Done)
				<-start
				return c.run(ctx)
			})
		})
	}
	ready.Wait()
	began := make([]time.Time, len(b.calls))
	now := time.Now()
	for i := range began {
		began[i] = now
	}
	close(start)
	done.Wait()
	return began, b.failure(errs)
}

// failure is the first of some errors, and how many more there are.
func (b batch) failure(errs []error) error {
	var first error
	n := 0
	for _, err := range errs {
		if err != nil {
			n++
			if first == nil {
				first = err
			}
		}
	}
	if n < 2 {
		if first != nil {
			return fmt.Errorf("%s: %w", b.verb, first)
		}
		return nil
	}
	return fmt.Errorf("%d of %d %s: %w, and others", n, len(errs), b.verb, first)
}

// measure is the outcome of calls that are done.
func (b batch) measure(began []time.Time, machine traffic.MachineTime) (traffic.Measurement, error) {
	n := len(b.calls)
	m := traffic.Measurement{
		Workload: result.WorkloadCNIAdd, Flows: 1, Count: uint64(n), Units: float64(n), Unit: result.UnitMilliseconds,
		CPUUnit: callUnit, Machine: machine, Histogram: hdrhistogram.New(1, slowestCall, callDigits),
	}
	if b.verb == verbDel {
		m.Workload = result.WorkloadCNIDel
	}
	if b.atOnce {
		m.Flows = n
	}
	var took []float64
	last := began[0]
	for i, c := range b.calls {
		d := c.ended.Sub(began[i])
		took = append(took, d.Seconds()*1e3)
		if err := m.Histogram.RecordValue(int64(d)); err != nil {
			return m, err
		}
		if c.ended.After(last) {
			last = c.ended
		}
	}
	m.Rate, m.Seconds = median(took), last.Sub(began[0]).Seconds()
	return m, nil
}

// attached is what ADD answers, as far as it is checked.
type attached struct {
	IPs []struct {
		Address netip.Prefix `json:"address"`
		Gateway netip.Addr   `json:"gateway"`
	} `json:"ips"`
}

// parse reads the answer to ADD.
func (c *call) parse() (attached, error) {
	var a attached
	if err := json.Unmarshal(c.output, &a); err != nil {
		return a, fmt.Errorf("result of %s: %w", verbAdd, err)
	}
	if len(a.IPs) == 0 {
		return a, fmt.Errorf("result of %s: no address in it", verbAdd)
	}
	return a, nil
}
