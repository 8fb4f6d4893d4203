// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"mustang/internal/agent/shed"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/service/manifest"
)

// longestRest bounds how long changes of Pods are put off.
const longestRest = 5 * time.Second

// policiesDue reports whether policies are to be written now. Changes of Pods alone wait for podRounds, unless a pod of
// this node waits for its policies.
func (a *Agent) policiesDue() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.policies.changed || a.policies.urgent || a.awaited > 0 {
		return a.policies.changed
	}
	next := a.podRounds.Reserve()
	rest := next.Delay()
	if rest == 0 {
		return true
	}
	next.Cancel()
	if a.podsDue != nil {
		a.podsDue.Stop()
	}
	a.podsDue = time.AfterFunc(rest, a.wake)
	return false
}

// policiesTook lets changes of Pods cause one round in twice the time that the last one took: half of the time is left
// for Services.
func (a *Agent) policiesTook(took time.Duration) {
	a.podRounds.SetLimit(rate.Every(2 * min(max(took, pause), longestRest)))
}

// applyPolicies writes the policies of a version, and notes which have no rules in force, of which lost tells.
func (a *Agent) applyPolicies(ctx context.Context, rules policies.Set, version uint64) (lost, err error) {
	a.mu.Lock()
	a.shedder.Others = a.policies.others
	a.mu.Unlock()
	full, lost, err := a.shedder.Apply(ctx, a.Policies, a.Node, rules)
	if a.shedder.Retry {
		if a.again != nil {
			a.again.Stop()
		}
		a.again = time.AfterFunc(shed.Hold, a.changePolicies)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.policies.failure = err; err == nil {
		a.policies.written, a.policies.last = version, a.shedder.Last
	}
	a.proceed()
	a.noRoom = map[manifest.Name]string{}
	for _, w := range full {
		if w.Kind == kube.NetworkPolicies {
			a.noRoom[manifest.Name{Namespace: w.Namespace, Name: w.Name}] = w.Text
		}
		a.warnings.add(w)
	}
	return lost, err
}
