// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// client opens the spec's flows to its target and runs its workload over them.
func (w *worker) client(ctx context.Context, spec Spec) (m Measurement, err error) {
	if err := spec.Validate(); err != nil {
		return Measurement{}, err
	}
	load, err := lookup(spec.Workload)
	if err != nil {
		return Measurement{}, err
	}
	w.begin()
	defer w.end()
	w.mu.Lock()
	w.seats(spec.flows())
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.seats(-spec.flows())
	}()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = errCancelled
		} else if err != nil {
			err = fmt.Errorf("%s to %s: %w", spec.Workload, spec.Target, err)
		}
	}()
	f, err := openFlows(ctx, load, spec)
	if err != nil {
		return Measurement{}, err
	}
	defer f.close()
	f.seat = w.seat
	defer context.AfterFunc(ctx, f.interrupt)()
	return load.drive(f)
}

// open opens the client's end of what the workload runs over.
func open(ctx context.Context, load workload, spec Spec) (*session, error) {
	if load.network() == "udp" {
		return dialUDP(spec)
	}
	return dial(ctx, spec)
}

// greet tells the server what is to come. Over UDP it waits for the answer.
func (s *session) greet(load workload) error {
	header := encodeHeader(load, s)
	if load.network() == "udp" {
		return s.greetUDP(header)
	}
	_, err := s.Write(header)
	return err
}

// dial opens the client's TCP connection.
func dial(ctx context.Context, spec Spec) (*session, error) {
	dialer := net.Dialer{Timeout: spec.stall(), KeepAlive: -1, Control: withCongestion(spec.Congestion)}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, "tcp", spec.Target.String())
	if err != nil {
		var netErr net.Error
		if errors.As(err, &netErr) && netErr.Timeout() {
			return nil, fmt.Errorf("connect: no answer for %v: %w", spec.stall().Round(time.Millisecond), unix.ETIMEDOUT)
		}
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("connect: %w", os.ErrInvalid)
	}
	s, err := newSession(tcp, spec)
	if err != nil {
		return nil, err
	}
	if err := s.noteCongestion(spec.Congestion); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}
