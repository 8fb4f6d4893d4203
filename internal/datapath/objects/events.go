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
	"golang.org/x/sys/unix"

	"mustang/internal/lock"
)

// Event is what programs tell of a connection or a packet.
type Event = tcEvent

// eventAtSocket is EVENT_AT_SOCKET of bpf/mustang/events.h.
const eventAtSocket = 0xff

const (
	// watchFor is how long programs tell of events after a sign of life of the process that reads them.
	watchFor = 3 * time.Second
	// watchEvery is how often the process looks: programs wake nobody.
	watchEvery = 25 * time.Millisecond
)

// Watch calls each with the events of some kinds from now on, until ctx ends or each returns an error, and leftOut with
// how many were left out since it was last called, if any were. Errors: *lock.Error if another process watches; one
// that matches os.ErrNotExist once the maps are removed.
func (o *Objects) Watch(ctx context.Context, each func(e Event, at time.Time) error, leftOut func(uint64) error,
	kinds ...uint32) error {
	lock, err := lock.Take(lock.Wait{}.WithContext(ctx), o.layout.maps(), o.CheckPinned)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	w := watcher{objects: o, each: each, leftOut: leftOut, begin: now()}
	for _, kind := range kinds {
		w.kinds |= 1 << kind
	}
	if w.known, err = o.eventsLeftOut(); err != nil {
		return err
	}
	if w.reader, err = ringbuf.NewReader(o.maps[tcMapEvents]); err != nil {
		return fmt.Errorf("open map %q: %w", tcMapEvents, err)
	}
	defer w.close()
	for ctx.Err() == nil {
		if err := w.round(ctx); err != nil {
			return err
		}
	}
	return nil
}

// watcher reads events.
type watcher struct {
	objects *Objects
	reader  *ringbuf.Reader
	record  ringbuf.Record
	kinds   uint64
	begin   time.Duration
	each    func(Event, time.Time) error
	leftOut func(uint64) error
	known   uint64 // of the events that were left out
}

// round reads for half of the time that programs tell of events.
func (w *watcher) round(ctx context.Context) error {
	if err := w.objects.CheckPinned(); err != nil {
		return err
	}
	if err := w.objects.NodeState.watch(now()+watchFor, w.kinds); err != nil {
		return err
	}
	for renew := now() + watchFor/2; now() < renew && ctx.Err() == nil; {
		select {
		case <-ctx.Done(): // what has come so far is read
		case <-time.After(watchEvery):
		}
		if err := w.read(); err != nil {
			return err
		}
	}
	return w.tellLeftOut()
}

func (w *watcher) close() {
	_ = w.objects.NodeState.watch(0, 0)
	_ = w.reader.Close()
}

// read reads what has come.
func (w *watcher) read() error {
	w.reader.SetDeadline(time.Unix(1, 0))
	for {
		err := w.reader.ReadInto(&w.record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		var e Event
		if err == nil {
			_, err = binary.Decode(w.record.RawSample, binary.NativeEndian, &e)
		}
		if err != nil {
			return fmt.Errorf("read map %q: %w", tcMapEvents, err)
		}
		if time.Duration(e.Time) < w.begin {
			continue // left over from another process
		}
		if err := w.each(e, time.Now().Add(time.Duration(e.Time)-now())); err != nil {
			return err
		}
	}
}

func (w *watcher) tellLeftOut() error {
	all, err := w.objects.eventsLeftOut()
	if err != nil || all == w.known {
		return err
	}
	more := all - w.known
	w.known = all
	return w.leftOut(more)
}

// eventsLeftOut returns how many events programs have not told, since the maps were created.
func (o *Objects) eventsLeftOut() (sum uint64, err error) {
	rows, _, err := o.Metrics.Get(0)
	for cpu := range rows {
		sum += rows[cpu].Count[tcMetricMETRIC_EVENT_LEFT_OUT]
	}
	return sum, err
}

// now returns the time of CLOCK_MONOTONIC, as programs tell it.
func now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano())
}
