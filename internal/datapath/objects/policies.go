// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"mustang/internal/datapath/dirlock"
)

// PoliciesInForce returns 1 + the row of the policies' settings that programs use; 0: no pod has a rule set.
func (f *Filter) PoliciesInForce() (row uint64, err error) {
	err = f.edit(func(r *tcFilter) { row = atomic.LoadUint64(&r.Policies) })
	return row, err
}

// EnforcePolicies sets what PoliciesInForce returns. Change must follow.
func (f *Filter) EnforcePolicies(row uint64) error {
	return f.edit(func(r *tcFilter) { atomic.StoreUint64(&r.Policies, row) })
}

// watchFor is how long programs tell of what they deny after a sign of life of the process that reads it.
const watchFor = 3 * time.Second

// WatchPolicies calls each with what policies deny from now on, as programs tell it (struct policy_event), until ctx ends or each returns
// an error. Tables are open. Errors: *dirlock.Error if another process does so; one that matches os.ErrNotExist once the maps are
// removed.
func (o *Objects) WatchPolicies(ctx context.Context, each func(event []byte, at time.Time) error) error {
	lock, err := dirlock.Take(dirlock.Wait{}.WithContext(ctx), o.layout.maps(), o.CheckPinned)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	reader, err := ringbuf.NewReader(o.maps.PolicyEvents)
	if err != nil {
		return fmt.Errorf("read map %q: %w", tcMapPolicyEvents, err)
	}
	defer func() { _ = reader.Close() }()
	var record ringbuf.Record
	begin := now()
	for ctx.Err() == nil {
		if err := o.CheckPinned(); err != nil {
			return err
		}
		if err := o.Filter.watch(now() + watchFor); err != nil {
			return err
		}
		reader.SetDeadline(time.Now().Add(watchFor / 10))
		for renew := now() + watchFor/2; now() < renew; {
			err := reader.ReadInto(&record)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return fmt.Errorf("read map %q: %w", tcMapPolicyEvents, err)
			}
			var e tcPolicyEvent
			if _, err := binary.Decode(record.RawSample, binary.NativeEndian, &e); err != nil {
				return fmt.Errorf("read map %q: %w", tcMapPolicyEvents, err)
			}
			if time.Duration(e.Time) < begin {
				continue // left over from another process
			}
			if err := each(record.RawSample, time.Now().Add(time.Duration(e.Time)-now())); err != nil {
				return err
			}
		}
	}
	return nil
}

// now returns the time of CLOCK_MONOTONIC, as programs tell it.
func now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano())
}

// watch makes programs tell of what they deny until then.
func (f *Filter) watch(until time.Duration) error {
	return f.edit(func(r *tcFilter) { atomic.StoreUint64(&r.Watched, uint64(until)) })
}
