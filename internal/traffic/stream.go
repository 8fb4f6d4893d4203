// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"io"
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

func (t tcpStream) drive(s *session) (Measurement, error) {
	if err := s.setNoDelay(false); err != nil {
		return Measurement{}, err
	}
	var cpu time.Duration
	var err error
	if s.spec.Limit > 0 {
		cpu, err = t.sendLimit(s)
	} else {
		cpu, err = t.sendUntilReport(s)
	}
	if err != nil {
		return Measurement{}, err
	}
	if err := s.closeWrite(); err != nil {
		return Measurement{}, err
	}
	report, err := s.readReport()
	if err != nil {
		return Measurement{}, err
	}
	m := s.measurement(report)
	m.ClientCPUSeconds = cpu.Seconds()
	m.Unit, m.CPUUnit = "Gbit/s", "MB"
	m.Units = float64(m.Count) / 1e6
	if m.Seconds > 0 {
		m.Rate = float64(m.Count) * 8 / 1e9 / m.Seconds
	}
	return m, nil
}

// sendUntilReport writes until the server has closed its window and says so;
// it starts to look for that only when its own window is over. It returns the
// process's CPU time in its own window.
func (tcpStream) sendUntilReport(s *session) (time.Duration, error) {
	buf := make([]byte, streamBuffer)
	windowEnd := s.spec.Warmup + s.spec.Duration
	var cpuBegan, cpu time.Duration
	begun, ended := false, false
	start := time.Now()
	for {
		if _, err := s.write(buf); err != nil {
			return 0, err
		}
		now := time.Since(start)
		if !begun && now >= s.spec.Warmup {
			begun, cpuBegan = true, processCPU()
		}
		if now < windowEnd {
			continue
		}
		if !ended {
			ended, cpu = true, processCPU()-cpuBegan
		}
		if over, err := s.readable(); over || err != nil {
			return cpu, err
		}
		if now > windowEnd+s.spec.stall() {
			return 0, fmt.Errorf("no report %v after the window: %w", s.spec.stall(), unix.ETIMEDOUT)
		}
	}
}

// sendLimit writes just so many bytes as the spec says.
func (tcpStream) sendLimit(s *session) (time.Duration, error) {
	buf := make([]byte, streamBuffer)
	began := processCPU()
	for left := s.spec.Limit; left > 0; {
		n, err := s.write(buf[:min(left, streamBuffer)])
		if err != nil {
			return 0, err
		}
		left -= uint64(n)
	}
	return processCPU() - began, nil
}

func (t tcpStream) serve(s *session) error {
	clock, err := openMachineClock()
	if err != nil {
		return err
	}
	defer clock.close()
	report := s.served()
	buf := make([]byte, streamBuffer)
	var began time.Duration
	if s.spec.Limit > 0 {
		if err := clock.begin(); err != nil {
			return err
		}
	}
	open := s.spec.Limit > 0
	start := time.Now()
	for {
		n, err := s.read(buf)
		now := time.Since(start)
		limitReached := false
		switch {
		case errors.Is(err, io.EOF):
			return fmt.Errorf("client left after %d bytes in the window: %w", report.Count, io.ErrUnexpectedEOF)
		case err != nil:
			return err
		case open:
			report.Count += uint64(n)
			limitReached = s.spec.Limit > 0 && report.Count >= s.spec.Limit
		case now >= s.spec.Warmup:
			open, began = true, now
			if err := clock.begin(); err != nil {
				return err
			}
			continue
		default:
			continue
		}
		if limitReached || s.spec.Limit == 0 && now-began >= s.spec.Duration {
			report.Seconds = (now - began).Seconds()
			return t.finish(s, clock, report, buf)
		}
	}
}

// finish closes the window, reports and waits until the client is gone.
func (tcpStream) finish(s *session, clock *machineClock, report Served, buf []byte) error {
	var err error
	if report.Machine, err = clock.end(); err != nil {
		return err
	}
	report.CPUSeconds = clock.cpuElapsed.Seconds()
	if err := s.sendReport(report); err != nil {
		return err
	}
	return s.drain(buf)
}
