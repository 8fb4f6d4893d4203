// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"golang.org/x/time/rate"
)

// longestRest bounds how long changes of Pods are put off.
const longestRest = 5 * time.Second

// policiesDue reports whether policies are to be written now. Changes of Pods alone wait for podRounds, unless a pod of this node waits for its policies.
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

// policiesTook lets changes of Pods cause one round in twice the time that the last one took: half of the time is left for Services.
func (a *Agent) policiesTook(took time.Duration) {
	a.podRounds.SetLimit(rate.Every(2 * min(max(took, pause), longestRest)))
}
