// SPDX-License-Identifier: Apache-2.0

package healthz

import "time"

// Rounds is how the rounds of an agent went. Times are zero where there was none.
type Rounds struct {
	// Began is when the first one that succeeded ended, and Last when the last such one did.
	Began, Last time.Time
	// Number of them, and Failed among them.
	Number, Failed int
	// Took is how long the last one took, Longest the longest, and Total all of them.
	Took, Longest, Total time.Duration
	// Error is why the last one failed; empty if it did not.
	Error string
	// Waiting is since when a change waits to be written, or what failed to be written again.
	Waiting time.Time
	// Running is since when a round runs.
	Running time.Time
}

// changes are those that have come and are not in the tables yet.
type changes struct {
	services, endpoints int
	triggers            []time.Time
}

// maxTriggers bounds what is kept of changes that nothing can write.
const maxTriggers = 100_000

func (c changes) plus(d changes) changes {
	c.services, c.endpoints = c.services+d.services, c.endpoints+d.endpoints
	if c.triggers = append(c.triggers, d.triggers...); len(c.triggers) > maxTriggers {
		c.triggers = c.triggers[:maxTriggers]
	}
	return c
}

// add notes the end of a round.
func (r *Rounds) add(took time.Duration, err error) {
	r.Number++
	r.Took, r.Longest, r.Total, r.Error = took, max(r.Longest, took), r.Total+took, ""
	if err != nil {
		r.Failed++
		r.Error = err.Error()
	}
}

// succeeded notes when what there was to do was done.
func (r *Rounds) succeeded(now time.Time) {
	if r.Last = now; r.Began.IsZero() {
		r.Began = now
	}
}

// Queued notes that a change waits to be written.
func (s *State) Queued() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if s.waiting.IsZero() {
		s.waiting = now
	}
	if s.writing.IsZero() && s.rounds.Number > 0 { // before, the cluster is read, which a new process would do no faster
		s.writing = now
	}
	s.metrics.queued.Set(seconds(now))
}

// ServiceChanged notes a change of a Service that waits to be written.
func (s *State) ServiceChanged() {
	s.metrics.servicesTotal.Inc()
	s.change(changes{services: 1})
}

// EndpointsChanged notes a change of an EndpointSlice that waits to be written, and when what it tells of happened; zero: unknown.
func (s *State) EndpointsChanged(triggered time.Time) {
	s.metrics.endpointsTotal.Inc()
	c := changes{endpoints: 1}
	if !triggered.IsZero() {
		c.triggers = []time.Time{triggered}
	}
	s.change(c)
}

func (s *State) change(c changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = s.pending.plus(c)
	s.setPending()
}

func (s *State) setPending() {
	s.metrics.servicesPending.Set(float64(s.pending.services + s.taken.services))
	s.metrics.endpointsPending.Set(float64(s.pending.endpoints + s.taken.endpoints))
}

// Begin notes that a round takes all changes that wait.
func (s *State) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken, s.pending = s.taken.plus(s.pending), changes{}
	s.rounds.Running = s.now()
	if s.writing.IsZero() {
		s.writing = s.rounds.Running
	}
}

// Step notes that a round goes on: /livez fails if nothing is heard of one for long.
func (s *State) Step() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.writing.IsZero() {
		s.writing = s.now()
	}
}

// Written notes the end of a round that began some time ago. full is whether it compared all; err is why changes still wait: until a
// round has compared all, and written it.
func (s *State) Written(since time.Duration, full bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := s.metrics.partial
	if full {
		kind = s.metrics.full
	}
	s.metrics.duration.Observe(since.Seconds())
	kind.Observe(since.Seconds())
	before := s.rounds.Error
	s.writing, s.rounds.Running = time.Time{}, time.Time{}
	s.rounds.add(since, err)
	if err != nil {
		s.metrics.failed.Inc()
		s.failed = true
		if s.waiting.IsZero() {
			s.waiting = s.now()
		}
		return
	}
	if s.failed = s.failed && !full; s.failed {
		s.rounds.Error = before
		return
	}
	if !full && s.rounds.Began.IsZero() {
		return // not all has been written yet
	}
	now := s.now()
	s.waiting = time.Time{}
	s.rounds.succeeded(now)
	s.metrics.written.Set(seconds(now))
	for _, at := range s.taken.triggers {
		s.metrics.programming.Observe(now.Sub(at).Seconds())
	}
	s.taken = changes{}
	s.setPending()
}

// Joined notes the end of a round that joins the node with others.
func (s *State) Joined(since time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metrics.joining.Observe(since.Seconds())
	s.nodes.add(since, err)
	if err != nil {
		s.metrics.unjoined.Inc()
		return
	}
	s.nodes.succeeded(s.now())
	s.metrics.joined.Set(seconds(s.nodes.Last))
}

// Verb notes that the agent has done a verb of the CNI plugin. failed is that the plugin prints an error.
func (s *State) Verb(verb string, took time.Duration, failed bool) {
	result := "done"
	if failed {
		result = "failed"
	}
	s.metrics.verbs.WithLabelValues(verb, result).Observe(took.Seconds())
}

// Rounds returns how the rounds went that write services and policies, and those that join nodes.
func (s *State) Rounds() (services, nodes Rounds) {
	s.mu.Lock()
	defer s.mu.Unlock()
	services, nodes = s.rounds, s.nodes
	services.Waiting = s.waiting
	return services, nodes
}
