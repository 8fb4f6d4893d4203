// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"net/netip"
	"time"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
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

func (t *tableSample) policies(ctx context.Context) (result.Evidence, error) {
	c, err := t.connector(t.path.Listen, denied)
	if err != nil {
		return result.Evidence{}, err
	}
	defer c.close()
	if err := t.begin(); err != nil {
		return result.Evidence{}, err
	}
	change := t.changePolicy
	if t.Workload == result.WorkloadPolicyApply {
		change = t.applyPolicy
	}
	if err := change(ctx, c); err != nil {
		return result.Evidence{}, err
	}
	t.setTimes(int(t.Count), "change", 50)
	if err := t.end(); err != nil {
		return result.Evidence{}, err
	}
	recorder := evidence.Recorder{Lab: t.lab}
	return recorder.Record(func() (evidence.Flow, error) {
		flow := evidence.Flow{Path: t.path}
		err := c.on(func() error {
			for range proofs {
				o, err := c.open(t.path.Connect)
				if err != nil {
					return err
				}
				flow.Measurement = o.proof(proofs)
				o.close()
			}
			return nil
		})
		return flow, err
	})
}

// applyPolicy removes the policy, and measures the time of writing it.
func (t *tableSample) applyPolicy(ctx context.Context, c *connector) error {
	if err := t.lab.ClearPolicy(ctx); err != nil {
		return err
	}
	return t.change(ctx, c, func() error { return t.lab.WritePolicy(ctx) }, c.lookFor(false))
}

func (t *tableSample) changePolicy(ctx context.Context, c *connector) error {
	for started := time.Now(); t.Count < 2 || t.Count < mostChanges && time.Since(started) < ruleTime; {
		for _, allow := range []bool{true, false} {
			if err := t.change(ctx, c, func() error { return t.lab.AllowDenied(ctx, allow) }, c.lookFor(allow)); err != nil {
				return err
			}
		}
	}
	return nil
}

// lookFor returns a look that finds out whether connections are allowed or denied: the end of one that opens, or the
// begin of one that does not.
func (c *connector) lookFor(allow bool) func() (at time.Time, found bool, err error) {
	if allow {
		return func() (time.Time, bool, error) {
			open, err := c.try(denied, openTime)
			return time.Now(), open, err
		}
	}
	return func() (time.Time, bool, error) {
		at := time.Now()
		open, err := c.try(denied, deniedTime)
		if !open { // also after an error: a policy that comes amid a handshake leaves it half done
			open, err = c.try(denied, deniedTime)
		}
		return at, !open, err
	}
}
