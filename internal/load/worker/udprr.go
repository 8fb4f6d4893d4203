// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"os"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

// datagramRequester sends a datagram and waits for the server's answer, again and again. It
// goes on after udpTick without one.
type datagramRequester struct {
	*datagramFlow
	histogram *hdrhistogram.Histogram
}

func openDatagramRequester(c *connection, s *session) (flow, error) {
	f, err := newDatagramFlow(s, s.spec.RequestSize(), pace{})
	c.total.Histogram = newHistogram()
	return &datagramRequester{f, c.total.Histogram}, err
}

func (f *datagramRequester) carry(b burst) (r load.SliceResult, err error) {
	var last, heard time.Duration
	for last < b.length || r.Sent == 0 {
		answered, err := f.exchange(b.kind())
		if err != nil {
			return r, err
		}
		now := time.Since(b.start)
		r.Sent++
		if answered {
			r.Count++
			heard = now
		} else if now-heard > f.session.spec.StallTime() {
			return r, fmt.Errorf("no answer for %v: %w", now-heard, unix.ETIMEDOUT)
		}
		if answered && b.counted {
			if err := f.histogram.RecordValue(int64(now - last)); err != nil {
				return r, err
			}
		}
		last = now
	}
	r.Received, r.Seconds = r.Count, last.Seconds()
	return r, nil
}

// exchange sends a request and reports whether its answer came in time.
func (f *datagramRequester) exchange(kind byte) (answered bool, err error) {
	f.next.kind, f.next.answer = kind, true
	f.next.put(f.out)
	number := f.next.number
	f.next.number++
	if err := f.session.send(f.out); err != nil {
		return false, err
	}
	var since time.Time
	for {
		d, _, err := f.session.receiveOnce(f.in)
		switch {
		case err == nil && d.kind == datagramAnswer && d.number == number:
			return true, nil
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			return false, err
		case err != nil:
			return false, nil
		case since.IsZero(): // a late answer to an earlier request
			since = time.Now()
		case time.Since(since) > udpTick:
			return false, nil
		}
	}
}

func (f *datagramRequester) idle() error {
	_, err := f.settle()
	return err
}
