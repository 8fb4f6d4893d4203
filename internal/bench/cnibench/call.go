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
	"strings"
	"sync"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"
	"github.com/aclements/go-moremath/stats"

	"mustang/internal/load"
	"mustang/internal/netns"
	"mustang/internal/result"
)

const (
	verbAdd = "ADD"
	verbDel = "DEL"
)

var workloads = map[string]string{verbAdd: result.WorkloadCNIAdd, verbDel: result.WorkloadCNIDel}

// CallUnit is the unit that CPU time is divided by.
const CallUnit = "call"

const slowestCall = int64(10 * time.Minute) // bounds the histogram of calls, which has 3 significant digits

type call struct {
	program        string
	env            []string
	config, output []byte
	begun, ended   time.Time
}

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

func (c *call) addresses() (addrs []netip.Addr, err error) {
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

// measure makes calls of a verb and measures their time: one after the other, or all at once, where each counts from
// the common start.
func (t *trial) measure(ctx context.Context, verb string, calls []*call) (m load.Measurement, err error) {
	carry := inTurn
	if t.Concurrent {
		carry = together
	}
	if err := t.testbed.watch.Begin(); err != nil {
		return m, err
	}
	if err := carry(ctx, t.testbed.host, calls); err != nil {
		return m, fmt.Errorf("%s: %w", verb, err)
	}
	machine, err := t.testbed.watch.End()
	if err != nil {
		return m, err
	}
	n := len(calls)
	m = load.Measurement{
		Workload: workloads[verb], Flows: 1, Count: uint64(n), Units: float64(n), Unit: result.UnitMilliseconds,
		CPUUnit: CallUnit, Machine: machine, Histogram: hdrhistogram.New(1, slowestCall, 3),
	}
	if t.Concurrent {
		m.Flows = n
	}
	var took []float64
	for _, c := range calls {
		d := c.ended.Sub(c.begun)
		took = append(took, d.Seconds()*1e3)
		if err := m.Histogram.RecordValue(int64(d)); err != nil {
			return m, err
		}
		m.Seconds = max(m.Seconds, c.ended.Sub(calls[0].begun).Seconds())
	}
	m.Rate = stats.Sample{Xs: took}.Quantile(0.5)
	return m, nil
}

func inTurn(ctx context.Context, host *netns.Namespace, calls []*call) error {
	return host.Do(func() error {
		for _, c := range calls {
			c.begun = time.Now()
			if err := c.run(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// together makes all calls at once. Their threads enter the host's namespace before the start.
func together(ctx context.Context, host *netns.Namespace, calls []*call) error {
	errs := make([]error, len(calls))
	var ready, done sync.WaitGroup
	ready.Add(len(calls))
	start := make(chan struct{})
	for i, c := range calls {
		done.Go(func() {
			leave := sync.OnceFunc(ready.Done)
			defer leave()
			errs[i] = host.Do(func() error {
				leave()
				<-start
				return c.run(ctx)
			})
		})
	}
	ready.Wait()
	now := time.Now()
	for _, c := range calls {
		c.begun = now
	}
	close(start)
	done.Wait()
	return cmp.Or(errs...)
}
