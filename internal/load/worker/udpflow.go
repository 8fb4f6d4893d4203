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

// datagramFlow sends the datagrams of one flow. Each datagram marks whether it is counted: both ends count the same
// ones, and missing ones were lost.
type datagramFlow struct {
	session    *session
	out, in    []byte
	question   [load.MinDatagram]byte // for the counts
	next       datagram
	unanswered uint64  // datagrams since the last answer
	gap        float64 // nanoseconds between two datagrams; 0 is as fast as possible
	turn       float64 // the flow's offset, as a part of the gap: flows take turns
	serial     uint64  // of the last kindIdle
	counts     datagramCounts
}

func openDatagrams(c *connection, s *session) (flow, error) {
	f, err := newDatagramFlow(s, s.spec.DatagramSize())
	if flows := float64(s.spec.FlowCount()); s.spec.Rate > 0 {
		f.gap, f.turn = float64(len(f.out))*8e9/float64(s.spec.Rate)*flows, float64(len(c.flows))/flows
	}
	return f, err
}

func newDatagramFlow(s *session, size int) (*datagramFlow, error) {
	return &datagramFlow{
		session: s, out: make([]byte, size), in: make([]byte, load.MaxDatagram), next: datagram{flow: s.number},
	}, setTimeouts(s.fd, udpTick)
}

func (f *datagramFlow) carry(b burst) (load.SliceResult, error) {
	sent, elapsed, err := f.send(b)
	if err != nil {
		return load.SliceResult{}, err
	}
	r, err := f.settle()
	// Datagrams that a queue held at the beginning arrive faster than they were sent.
	r.Sent, r.Seconds = sent, max(r.Seconds, elapsed.Seconds())
	return r, err
}

func (f *datagramFlow) send(b burst) (sent uint64, elapsed time.Duration, err error) {
	for {
		if f.gap > 0 {
			due := time.Duration((float64(sent) + f.turn) * f.gap)
			sleepUntil(b.start.Add(min(due, b.length)))
		}
		elapsed = time.Since(b.start)
		if sent > 0 && b.over(sent, elapsed) {
			return sent, elapsed, nil
		}
		if err := f.sendNext(b.kind()); err != nil {
			return sent, elapsed, err
		}
		sent++
	}
}

func (f *datagramFlow) sendNext(kind byte) error {
	window := f.session.spec.Window
	f.unanswered++
	number, err := f.sendOne(kind, window > 0 && f.unanswered >= window)
	if err != nil || !f.next.answer {
		return err
	}
	f.unanswered = 0
	answered, err := f.await(number, f.session.spec.StallTime())
	if err == nil && !answered {
		err = fmt.Errorf("no answer to datagram %d: %w", number, unix.ETIMEDOUT)
	}
	return err
}

func (f *datagramFlow) sendOne(kind byte, answer bool) (uint64, error) {
	f.next.kind, f.next.answer = kind, answer
	f.next.put(f.out)
	f.next.number++
	return f.next.number - 1, f.session.send(f.out)
}

func (f *datagramFlow) await(number uint64, limit time.Duration) (answered bool, err error) {
	for since := (time.Time{}); ; {
		d, _, err := f.session.receive(f.in, limit)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, nil
		case err != nil || d.kind == datagramAnswer && d.number == number:
			return err == nil, err
		case since.IsZero(): // a late answer to an earlier request
			since = time.Now()
		case time.Since(since) > udpTick+limit:
			return false, nil
		}
	}
}

// settle requests the server's counts until it answers. Nothing is in flight then.
func (f *datagramFlow) settle() (load.SliceResult, error) {
	f.serial++
	f.unanswered = 0
	datagram{kind: kindIdle, flow: f.session.number, number: f.serial}.put(f.question[:])
	n, err := f.session.ask(f.question[:], f.in, datagramSums)
	if err != nil {
		return load.SliceResult{}, err
	}
	counts, ok := parseCounts(f.in[:n])
	r, grown := counts.since(f.counts)
	if !ok || !grown {
		return load.SliceResult{}, fmt.Errorf("server's counts %+v after %+v", counts, f.counts)
	}
	f.counts = counts
	return r, nil
}

// idle does nothing: the server idles after each burst.
func (f *datagramFlow) idle() error { return nil }

func (f *datagramFlow) end() (load.Served, error) {
	datagram{kind: kindEnd, flow: f.session.number}.put(f.question[:])
	for range endCopies {
		if err := f.session.send(f.question[:]); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			return load.Served{}, err
		}
	}
	return load.Served{Count: f.counts.Count}, nil
}

// datagramRequester repeatedly sends a datagram and waits for the server's answer. After udpTick without an answer
// it goes on.
type datagramRequester struct {
	*datagramFlow
	latencies *hdrhistogram.Histogram
	lost      time.Duration // since the last answer
}

func openDatagramRequester(c *connection, s *session) (flow, error) {
	f, err := newDatagramFlow(s, s.spec.RequestSize())
	c.total.Histogram = newHistogram()
	return &datagramRequester{datagramFlow: f, latencies: c.total.Histogram}, err
}

func (f *datagramRequester) carry(b burst) (load.SliceResult, error) {
	kind := b.kind()
	return transact(b, f.latencies, func() (answered bool, err error) {
		number, err := f.sendOne(kind, true)
		if err == nil {
			answered, err = f.await(number, 0)
		}
		if f.lost += udpTick; answered {
			f.lost = 0
		} else if f.lost > f.session.spec.StallTime() && err == nil {
			err = fmt.Errorf("no answer for %v: %w", f.lost, unix.ETIMEDOUT)
		}
		return answered, err
	})
}

func (f *datagramRequester) idle() error {
	_, err := f.settle()
	return err
}
