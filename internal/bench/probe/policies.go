// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
)

// ruleTime is how long a rule changes, see [mostChanges].
const ruleTime = 300 * time.Millisecond

// Times of connections while a change is awaited. One that is denied is given up after openTime, and the next begins. One that
// should open is taken as denied after deniedTime, which no scheduler exceeds often, if the next one does not open either.
const (
	openTime   = 2 * time.Millisecond
	deniedTime = 100 * time.Millisecond
)

// denied is the address that the policy of a lab denies.
var denied = netip.AddrPortFrom(lab.PodAIPs[0], lab.DeniedPort)

// policies takes a sample of writing a policy, or of changing it.
func (t Task) policies(ctx context.Context, m *load.Measurement, s *span) (result.Evidence, error) {
	c, err := t.connector(t.Path.Listen, denied)
	if err != nil {
		return result.Evidence{}, err
	}
	defer c.close()
	if err := s.begin(); err != nil {
		return result.Evidence{}, err
	}
	if t.Workload == result.WorkloadPolicyApply {
		err = t.applyPolicy(ctx, c, m)
	} else {
		err = t.changePolicy(ctx, c, m)
	}
	if err != nil {
		return result.Evidence{}, err
	}
	changes(m)
	if err := s.end(m); err != nil {
		return result.Evidence{}, err
	}
	return t.provePolicy(c)
}

// applyPolicy removes the policy, and measures the time of writing it.
func (t Task) applyPolicy(ctx context.Context, c *connector, m *load.Measurement) error {
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

// changePolicy adds a rule to the policy and removes it again.
func (t Task) changePolicy(ctx context.Context, c *connector, m *load.Measurement) error {
	for started := time.Now(); m.Count < 2 || m.Count < mostChanges && time.Since(started) < ruleTime; {
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
func await(ctx context.Context, c *connector, allow bool, change func() error) (took time.Duration, err error) {
	within := map[bool]time.Duration{true: openTime, false: deniedTime}[allow]
	var changed chan error
	begun := make(chan time.Time, 1)
	err = c.on(func() error {
		if open, err := c.try(denied, within); err != nil || open == allow {
			return errors.Join(err, fmt.Errorf("%s before the change: open %t", denied, open))
		}
		changed = make(chan error, 1)
		go func() { // on another CPU, which may take its time to begin
			begun <- time.Now()
			changed <- change()
		}()
		for deadline := time.Now().Add(changeTimeout); time.Now().Before(deadline) && ctx.Err() == nil; {
			at := time.Now()
			open, err := c.try(denied, within)
			if open == allow && !allow {
				open, err = c.try(denied, within)
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
		return fmt.Errorf("the change of the policy had no effect within %v", changeTimeout)
	})
	if changed != nil {
		err = errors.Join(err, <-changed)
	}
	return took, err
}

// provePolicy opens connections that the policy allows, and returns their evidence.
func (t Task) provePolicy(c *connector) (result.Evidence, error) {
	recorder := evidence.Recorder{Lab: t.Lab}
	if err := recorder.Start(); err != nil {
		return result.Evidence{}, err
	}
	var proof load.Measurement
	err := c.on(func() error {
		for range proofs {
			o, err := c.open(t.Path.Connect)
			if err != nil {
				return err
			}
			proof = o.proof(proofs)
			o.close()
		}
		return nil
	})
	if err != nil {
		return result.Evidence{}, err
	}
	return prove(&recorder, evidence.Flow{Path: t.Path, Measurement: proof})
}
