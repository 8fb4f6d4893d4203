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

// client connects to the spec's target and runs its workload.
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
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = errCancelled
		} else if err != nil {
			err = fmt.Errorf("%s to %s: %w", spec.Workload, spec.Target, err)
		}
	}()
	s, err := dial(ctx, spec)
	if err != nil {
		return Measurement{}, err
	}
	defer s.close()
	defer context.AfterFunc(ctx, s.interrupt)()
	err = onThread(w.cpu, func() error {
		if _, err := s.Write(encodeHeader(load, spec, s.congestion)); err != nil {
			return err
		}
		var err error
		m, err = load.drive(s)
		return err
	})
	return m, err
}

// dial opens the client's connection.
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
