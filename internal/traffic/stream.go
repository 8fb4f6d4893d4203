// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// streamBuffer is the size of one write and one read, that of iperf3.
const streamBuffer = 128 << 10

// tcpStream is one-way bulk transfer, from client to server. The server counts
// what it received in the window by its own clock. An interval starts and ends
// with a read that has returned, so the bytes between are exact.
type tcpStream struct{}

func (tcpStream) name() string    { return TCPStream }
func (tcpStream) code() byte      { return 's' }
func (tcpStream) network() string { return "tcp" }

func (t tcpStream) drive(f *flows) (Measurement, error) {
	reports := make([]Served, len(f.sessions))
	cpu := newCPUSpans(len(f.sessions))
	err := f.each(func(i int, s *session) error {
		if err := s.greet(t); err != nil {
			return err
		}
		if err := s.setNoDelay(false); err != nil {
			return err
		}
		start, err := f.gate.pass(nil)
		if err != nil {
			return err
		}
		if s.spec.Limit > 0 {
			cpu[i].began = processCPU()
			err = t.sendLimit(s, f)
			cpu[i].ended = processCPU()
		} else {
			cpu[i], err = t.sendUntilReport(s, start)
		}
		if err != nil {
			return err
		}
		if err := s.closeWrite(); err != nil {
			return err
		}
		reports[i], err = s.readReport()
		return err
	})
	if err != nil {
		return Measurement{}, err
	}
	m, err := f.measurement(reports)
	if err != nil {
		return Measurement{}, err
	}
	m.ClientCPUSeconds = cpu.seconds(f.spec.Limit > 0)
	m.bytes()
	return m, nil
}

// cpuSpan is the process's CPU time at both ends of a flow's window.
type cpuSpan struct{ began, ended time.Duration }

// cpuSpans are those of all flows of a run.
type cpuSpans []cpuSpan

func newCPUSpans(flows int) cpuSpans { return make(cpuSpans, flows) }

// seconds is the process's CPU time from the first flow that saw the window's
// beginning to the first that saw its end, or to the last where each has an end of
// its own.
func (c cpuSpans) seconds(last bool) float64 {
	byEnd := func(a, b cpuSpan) int { return int(a.ended - b.ended) }
	began := slices.MinFunc(c, func(a, b cpuSpan) int { return int(a.began - b.began) }).began
	if last {
		return (slices.MaxFunc(c, byEnd).ended - began).Seconds()
	}
	return (slices.MinFunc(c, byEnd).ended - began).Seconds()
}

// sendUntilReport writes until the server has closed its window and says so;
// it starts to look for that only when its own window is over. It returns the
// process's CPU time at the ends of its own window.
func (tcpStream) sendUntilReport(s *session, start time.Time) (cpu cpuSpan, err error) {
	buf := make([]byte, streamBuffer)
	windowEnd := s.spec.Warmup + s.spec.Duration
	begun, ended := false, false
	for {
		if _, err := s.write(buf); err != nil {
			return cpu, err
		}
		now := time.Since(start)
		if !begun && now >= s.spec.Warmup {
			begun, cpu.began = true, processCPU()
		}
		if now < windowEnd {
			continue
		}
		if !ended {
			ended, cpu.ended = true, processCPU()
		}
		if over, err := s.readable(); over || err != nil {
			return cpu, err
		}
		if now > windowEnd+s.spec.stall() {
			return cpu, fmt.Errorf("no report %v after the window: %w", s.spec.stall(), unix.ETIMEDOUT)
		}
	}
}

// sendLimit writes until all flows together have written just so many bytes as
// the spec says.
func (tcpStream) sendLimit(s *session, f *flows) error {
	buf := make([]byte, streamBuffer)
	for {
		n := f.take(streamBuffer)
		if n == 0 {
			return nil
		}
		if _, err := s.Write(buf[:n]); err != nil {
			return err
		}
	}
}

// serve reads until the window of all flows is over, reports and waits until the
// client is gone.
func (tcpStream) serve(s *session) error {
	tally := &s.group.stream
	if err := tally.begin(); err != nil {
		return err
	}
	buf := make([]byte, streamBuffer)
	for over := false; !over; {
		n, err := s.read(buf)
		if errors.Is(err, io.EOF) {
			over, err = true, tally.end(s)
		} else if err == nil {
			over, err = tally.take(n)
		}
		switch {
		case errors.Is(err, errShort):
			return fmt.Errorf("client left after %d bytes in the window: %w", tally.counted(), io.ErrUnexpectedEOF)
		case err != nil:
			return err
		}
	}
	report := tally.of(s)
	s.publish(report)
	if err := s.sendReport(report); err != nil {
		return err
	}
	return s.drain(buf)
}
