// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"mustang/internal/agent/shed"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/service/manifest"
)

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
