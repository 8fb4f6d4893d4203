// SPDX-License-Identifier: Apache-2.0

package cnibench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"
	"github.com/aclements/go-moremath/stats"

	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/netns"
	"mustang/internal/result"
)

// Verbs of the CNI spec.
const (
	verbAdd = "ADD"
	verbDel = "DEL"
)

// CallUnit is the unit that CPU time is divided by.
const CallUnit = "call"

// Range of the histogram of calls: 1 ns to 10 minutes, with 3 significant digits.
const (
	slowestCall = int64(10 * time.Minute)
	callDigits  = 3
)

type call struct {
	program string
	env     []string
	config  []byte

	output []byte
	ended  time.Time
}

// run executes the plugin in the network namespace of the calling thread, as libcni
// does. A plugin's error result becomes the error.
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
	var failure struct{ Msg, Details string }
	if json.Unmarshal(c.output, &failure) == nil && failure.Msg != "" {
		return errors.New(strings.TrimSpace(failure.Msg + " " + failure.Details))
	}
	return fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
}

type batch struct {
	verb       string
	host       *netns.Namespace
	calls      []*call
	concurrent bool
	watch      *clock.Machine
}

// run makes the calls and measures their time. Concurrent calls all count from the
// common start.
func (b batch) run(ctx context.Context) (load.Measurement, error) {
	if err := b.watch.Begin(); err != nil {
		return load.Measurement{}, err
	}
	call := b.sequential
	if b.concurrent {
		call = b.together
	}
	started, err := call(ctx)
	machine, watchErr := b.watch.End()
	if err := errors.Join(err, watchErr); err != nil {
		return load.Measurement{}, err
	}
	return b.measure(started, machine)
}

// sequential makes one call after the other, and returns their start times.
func (b batch) sequential(ctx context.Context) (started []time.Time, err error) {
	err = b.host.Do(func() error {
		for _, c := range b.calls {
			started = append(started, time.Now())
			if err := c.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", b.verb, err)
			}
		}
		return nil
	})
	return started, err
}

// together makes all calls at once, and returns their start time for each. Their
// threads enter the host's namespace before it.
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
	started := slices.Repeat([]time.Time{time.Now()}, len(b.calls))
	close(start)
	done.Wait()
	if err := cmp.Or(errs...); err != nil {
		return nil, fmt.Errorf("%s: %w", b.verb, err)
	}
	return started, nil
}

func (b batch) measure(started []time.Time, machine clock.MachineTime) (load.Measurement, error) {
	n := len(b.calls)
	m := load.Measurement{
		Workload: result.WorkloadCNIAdd, Flows: 1, Count: uint64(n), Units: float64(n), Unit: result.UnitMilliseconds,
		CPUUnit: CallUnit, Machine: machine, Histogram: hdrhistogram.New(1, slowestCall, callDigits),
	}
	if b.verb == verbDel {
		m.Workload = result.WorkloadCNIDel
	}
	if b.concurrent {
		m.Flows = n
	}
	var took []float64
	last := started[0]
	for i, c := range b.calls {
		d := c.ended.Sub(started[i])
		took = append(took, d.Seconds()*1e3)
		if err := m.Histogram.RecordValue(int64(d)); err != nil {
			return m, err
		}
		if c.ended.After(last) {
			last = c.ended
		}
	}
	m.Rate, m.Seconds = stats.Sample{Xs: took}.Quantile(0.5), last.Sub(started[0]).Seconds()
	return m, nil
}

// parse returns the addresses in the result of ADD.
func (c *call) parse() (addrs []netip.Addr, err error) {
	var a struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(c.output, &a); err != nil {
		return nil, fmt.Errorf("parse result of %s: %w", verbAdd, err)
	}
	for _, ip := range a.IPs {
		addrs = append(addrs, ip.Address.Addr())
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("result of %s lacks an address", verbAdd)
	}
	return addrs, nil
}
