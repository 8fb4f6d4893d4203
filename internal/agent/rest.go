// SPDX-License-Identifier: Apache-2.0

package agent

import "time"

// longestRest bounds how long changes of Pods are put off.
const longestRest = 5 * time.Second

// rest is until when changes of Pods are put off. All policies together take long where there are many objects, and Pods come and go all the time: half of
// the time is left for other things.
type rest struct {
	until time.Time
	end   *time.Timer
}

// policiesDue reports whether policies are to be written. Nothing is put off that is urgent, or that a pod of this node waits for.
func (a *Agent) policiesDue() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &a.policies.rest
	left := time.Until(r.until)
	if !a.policies.changed || a.policies.urgent || a.awaited > 0 || left <= 0 {
		return a.policies.changed
	}
	if r.end != nil {
		r.end.Stop()
	}
	r.end = time.AfterFunc(left, a.wake)
	return false
}

// restAfter puts changes of Pods off for as long as the last round of policies took. One that has failed is tried again when that is due.
func (a *Agent) restAfter(took time.Duration, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.policies.rest.until = time.Time{}
	if err == nil {
		a.policies.rest.until = time.Now().Add(min(took, longestRest))
	}
}
