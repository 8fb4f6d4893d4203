// SPDX-License-Identifier: Apache-2.0

package status

import "time"

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
	r.Took, r.Error = took.Seconds(), ""
	r.Longest, r.Mean = max(r.Longest, r.Took), r.Mean+(r.Took-r.Mean)/float64(r.Number)
	if err != nil {
		r.Failed++
		r.Error = err.Error()
	}
}

// succeeded notes when what there was to do was done.
func (r *Rounds) succeeded(now time.Time) {
	if r.Last = now; r.First.IsZero() {
		r.First = now
	}
}

// Queued notes that a change waits to be written.
func (s *Tracker) Queued() {
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
func (s *Tracker) ServiceChanged() {
	s.metrics.servicesTotal.Inc()
	s.change(changes{services: 1})
}

// EndpointsChanged notes a change of an EndpointSlice that waits to be written, and when what it tells of happened; zero: unknown.
func (s *Tracker) EndpointsChanged(triggered time.Time) {
	s.metrics.endpointsTotal.Inc()
	c := changes{endpoints: 1}
	if !triggered.IsZero() {
		c.triggers = []time.Time{triggered}
	}
	s.change(c)
}

func (s *Tracker) change(c changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = s.pending.plus(c)
	s.setPending()
}

func (s *Tracker) setPending() {
	s.metrics.servicesPending.Set(float64(s.pending.services + s.taken.services))
	s.metrics.endpointsPending.Set(float64(s.pending.endpoints + s.taken.endpoints))
}

// Begin notes that a round takes all changes that wait.
func (s *Tracker) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken, s.pending = s.taken.plus(s.pending), changes{}
	s.rounds.Running = s.now()
	if s.writing.IsZero() {
		s.writing = s.rounds.Running
	}
}

// Step notes that a round goes on: /livez fails if nothing is heard of one for long.
func (s *Tracker) Step() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.writing.IsZero() {
		s.writing = s.now()
	}
}

// Written notes the end of a round that began some time ago. full is whether it compared all; err is why changes still wait: until a
// round has compared all, and written it.
func (s *Tracker) Written(since time.Duration, full bool, err error) {
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
	if !full && s.rounds.First.IsZero() {
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
func (s *Tracker) Joined(since time.Duration, err error) {
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
func (s *Tracker) Verb(verb string, took time.Duration, failed bool) {
	result := "done"
	if failed {
		result = "failed"
	}
	s.metrics.verbs.WithLabelValues(verb, result).Observe(took.Seconds())
}

// Rounds returns how the rounds went that write services and policies, and those that join nodes.
func (s *Tracker) Rounds() (services, nodes Rounds) {
	s.mu.Lock()
	defer s.mu.Unlock()
	services, nodes = s.rounds, s.nodes
	services.Waiting = s.waiting
	return services, nodes
}
