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
