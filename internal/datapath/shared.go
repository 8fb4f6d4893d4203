// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"sync"
)

// Shared is a datapath that a process keeps open, under one root: opening all maps takes longer than a change.
// Methods may be called concurrently. Do not close their results. If the datapath was removed since, the next call
// opens the new one, and the garbage collector frees the old one once no call uses it.
type Shared struct {
	mu   sync.Mutex
	open *Datapath // nil before the first call
}

// Open is the function Open.
func (s *Shared) Open(ctx context.Context, o Options) (*Datapath, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open != nil && s.open.objects.Renew(ctx, replaceFilters) == nil {
		return s.open, nil
	}
	return s.keep(Open(ctx, o))
}

// OpenExisting is the function OpenExisting.
func (s *Shared) OpenExisting(o Options) (*Datapath, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open != nil && s.open.objects.CheckPinned() == nil {
		return s.open, nil
	}
	return s.keep(OpenExisting(o))
}

func (s *Shared) keep(d *Datapath, err error) (*Datapath, error) {
	s.open = d
	return d, err
}
