// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

// header begins a connection. It is a message over TCP, and follows a datagramHello.
type header struct {
	Protocol int       `json:"mustang"`
	Spec     load.Spec `json:"spec"`
}

func newHeader(spec load.Spec) header {
	spec.Namespace = "" // of the client
	return header{load.Protocol, spec}
}

// check returns an error unless the header is of this version, for a kind of socket, and makes sense.
func (h header) check(kind int) error {
	if h.Protocol != load.Protocol {
		return errors.New("load: not a mustang client, or one of another version")
	}
	if err := h.Spec.CheckTraffic(); err != nil {
		return err
	}
	if lookup(h.Spec.Workload).kind != kind {
		return fmt.Errorf("load: %s over another kind of socket", h.Spec.Workload)
	}
	return nil
}

func (s *session) handshake() (load.Served, error) {
	if lookup(s.spec.Workload).kind == unix.SOCK_DGRAM {
		return s.hello()
	}
	if err := s.writeMessage(newHeader(s.spec)); err != nil {
		return load.Served{}, err
	}
	served, err := s.readReport()
	if err == nil && served.Congestion != s.Congestion {
		err = fmt.Errorf("the client uses congestion control %q, the server %q", s.Congestion, served.Congestion)
	}
	return served, err
}

func (s *session) welcome() error {
	if lookup(s.spec.Workload).kind == unix.SOCK_STREAM {
		return s.writeMessage(s.Served)
	}
	b, err := datagram{kind: datagramWelcome, flow: s.number}.with(s.Served)
	if err != nil {
		return err
	}
	return s.send(b)
}

const maxMessage = 1 << 16 // bounds a message in bytes

func (s *session) writeMessage(v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	return s.write(body)
}

// readMessage reads what writeMessage sends. The other side sends nothing after it until it is answered.
func readMessage(from io.Reader, v any) error {
	if err := json.NewDecoder(io.LimitReader(from, maxMessage)).Decode(v); err != nil {
		return fmt.Errorf("read message: %w", err)
	}
	return nil
}

func (s *session) readReport() (report load.Served, err error) {
	err = readMessage(s, &report)
	return report, err
}

// flow is the client's part of one flow of a connection.
type flow interface {
	// carry carries load for a burst, and returns when nothing of it is in flight.
	carry(burst) (load.SliceResult, error)
	// idle informs the server that a slice is over.
	idle() error
	// end ends the flow and returns the server's report of all that was counted.
	end() (load.Served, error)
}

// burst is a stretch of load on all flows of a connection: a slice's lead, or the rest of it.
type burst struct {
	start   time.Time
	length  time.Duration
	limit   uint64 // datagrams or transactions, in place of the length; 0: none
	counted bool
}

// Kinds of requests, of their responses, and of datagrams.
const (
	kindWarmup   = 'w' // load, not counted
	kindMeasured = 'm' // load, counted
	kindIdle     = 'p' // the burst or slice is over
	kindEnd      = 'e' // the connection is over
)

func (b burst) kind() byte {
	if b.counted {
		return kindMeasured
	}
	return kindWarmup
}

func (b burst) over(count uint64, elapsed time.Duration) bool {
	if b.limit > 0 {
		return count >= b.limit
	}
	return elapsed >= b.length
}

// newHistogram returns a histogram of latencies: 1 ns to 60 s, 3 significant digits.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(time.Minute), 3) }

// transact does one transaction after the other until the burst is over and one was completed. The end of a transaction
// is the start of the next one: latencies add up to the window. A lost transaction takes its time without a latency.
func transact(
	b burst, latencies *hdrhistogram.Histogram, exchange func() (completed bool, err error),
) (r load.SliceResult, err error) {
	var last time.Duration
	for r.Count == 0 || !b.over(r.Count, last) {
		completed, err := exchange()
		if err != nil {
			return r, err
		}
		now := time.Since(b.start)
		if r.Sent++; completed {
			r.Count++
			if b.counted {
				if err := latencies.RecordValue(int64(now - last)); err != nil {
					return r, err
				}
			}
		}
		last = now
	}
	r.Received, r.Seconds = r.Count, last.Seconds()
	return r, nil
}
