// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// attend passes on what the command writes until it has ended, or must.
func (m *machine) attend(ctx context.Context) (int, error) {
	boot := time.NewTimer(m.options.BootTimeout)
	defer boot.Stop()
	var deadline, grace <-chan time.Time
	started := false
	cancelled := ctx.Done()
	for {
		select {
		case f, ok := <-m.frames:
			if !ok {
				return 0, m.gone(started)
			}
			switch f.what {
			case frameStarted:
				started = true
				boot.Stop()
				if m.options.Stdin != nil {
					go m.passInput()
				}
				if m.options.Timeout > 0 {
					timer := time.NewTimer(m.options.Timeout)
					defer timer.Stop()
					deadline = timer.C
				}
			case frameExited:
				if err := ctx.Err(); err != nil {
					return int(f.data[0]), context.Cause(ctx)
				}
				return int(f.data[0]), nil
			default:
				if err := m.take(f); err != nil {
					return 0, err
				}
			}
		case name := <-m.dead:
			return 0, fmt.Errorf("%s ended", name)
		case <-boot.C:
			return 0, fmt.Errorf("not booted after %v", m.options.BootTimeout)
		case <-deadline:
			return 0, fmt.Errorf("%w after %v", ErrTimeout, m.options.Timeout)
		case <-cancelled:
			if m.options.Grace == 0 || !started {
				return 0, context.Cause(ctx)
			}
			cancelled = nil
			if err := m.send.write(frameSignal, []byte{byte(unix.SIGINT)}); err != nil {
				return 0, context.Cause(ctx)
			}
			timer := time.NewTimer(m.options.Grace)
			defer timer.Stop()
			grace = timer.C
		case <-grace:
			return 0, context.Cause(ctx)
		}
	}
}

// passInput sends the command what it is to read, until there is no more or the
// guest has ended.
func (m *machine) passInput() {
	data := make([]byte, maxFrame)
	for {
		n, err := m.options.Stdin.Read(data)
		if n > 0 && !m.passOne(data[:n]) {
			return
		}
		if err != nil { // whatever it is, the command gets no more
			m.passOne(nil)
			return
		}
	}
}

// passOne sends one frame of input, and returns when the command has it: or false
// when the guest has ended.
func (m *machine) passOne(data []byte) bool {
	if err := m.send.write(frameStdin, data); err != nil {
		return false
	}
	select {
	case <-m.taken:
		return true
	case <-m.ended:
		return false
	}
}

// take passes on a frame of output.
func (m *machine) take(f frame) error {
	var err error
	switch f.what {
	case frameStdout:
		_, err = m.options.Stdout.Write(f.data)
	case frameStderr:
		_, err = m.options.Stderr.Write(f.data)
	case frameTaken:
		m.taken <- true // one at a time is under way
	case frameFailed:
		return errors.New(string(f.data))
	default:
		return fmt.Errorf("unknown frame %q from the guest", f.what)
	}
	if err != nil {
		return fmt.Errorf("pass on the output: %w", err)
	}
	return nil
}

// gone says why the guest went away.
func (m *machine) gone(started bool) error {
	switch {
	case !errors.Is(m.wrong, io.EOF) && !errors.Is(m.wrong, unix.ECONNRESET):
		return m.wrong
	case started:
		return errors.New("the guest ended before its command")
	}
	return errNotBooted
}
