// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"mustang/internal/lock"
)

// Event is a connection or a packet that a program reports.
type Event = tcEvent

const (
	// watchFor is how long programs report events after a sign of life of the process that reads them.
	watchFor   = 3 * time.Second
	watchEvery = 25 * time.Millisecond // how often the process polls: programs do not wake it
)

// Watch calls each with the events of some kinds from now on, until ctx ends or each returns an error. If events were
// left out since the last call, it calls leftOut with their number. Errors: *lock.Error if another process watches;
// one that matches os.ErrNotExist once the maps are removed.
func (o *Objects) Watch(ctx context.Context, each func(e Event, at time.Time) error, leftOut func(uint64) error,
	kinds ...uint32) error {
	lock, err := lock.Take(lock.Wait{}.WithContext(ctx), o.layout.maps, o.CheckPinned)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	var bits uint64
	for _, kind := range kinds {
		bits |= 1 << kind
	}
	known, err := o.eventsLeftOut()
	if err != nil {
		return err
	}
	begin := monotonic()
	reader, err := ringbuf.NewReader(o.maps[tcMapEvents])
	if err != nil {
		return fmt.Errorf("open map %q: %w", tcMapEvents, err)
	}
	defer func() {
		_ = o.NodeState.watch(0, 0)
		_ = reader.Close()
	}()
	for ctx.Err() == nil {
		if err := errors.Join(o.CheckPinned(), o.NodeState.watch(monotonic()+uint64(watchFor), bits)); err != nil {
			return err
		}
		for renew := time.Now().Add(watchFor / 2); time.Now().Before(renew) && ctx.Err() == nil; {
			select {
			case <-ctx.Done(): // what has come so far is read
			case <-time.After(watchEvery):
			}
			if err := readEvents(reader, begin, each); err != nil {
				return err
			}
		}
		all, err := o.eventsLeftOut()
		if err == nil && all != known {
			err = leftOut(all - known)
		}
		if known = all; err != nil {
			return err
		}
	}
	return nil
}

// readEvents reads the pending events. Events before begin are left over from another process.
func readEvents(reader *ringbuf.Reader, begin uint64, each func(Event, time.Time) error) error {
	reader.SetDeadline(time.Unix(1, 0))
	var record ringbuf.Record
	for {
		err := reader.ReadInto(&record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		var e Event
		if err == nil {
			_, err = binary.Decode(record.RawSample, binary.NativeEndian, &e)
		}
		if err != nil {
			return fmt.Errorf("read map %q: %w", tcMapEvents, err)
		}
		if e.Time < begin {
			continue
		}
		if err := each(e, time.Now().Add(-time.Duration(monotonic()-e.Time))); err != nil {
			return err
		}
	}
}

// eventsLeftOut returns how many events programs have left out since the maps were created.
func (o *Objects) eventsLeftOut() (sum uint64, err error) {
	rows, _, err := o.Metrics.Get(0)
	for cpu := range rows {
		sum += rows[cpu].Count[tcMetricMETRIC_EVENT_LEFT_OUT]
	}
	return sum, err
}
