// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

const streamBuffer = 128 << 10 // the size of one write and one read, as in iperf3

// A TCP stream consists of blocks of streamBuffer bytes: the receiver finds their ends by arithmetic. The first byte
// of a block is its mark: the kind of the burst that it ends, kindEnd, or none. The receiver answers a block with a
// mark by a record: the number of bytes since the last record, 8 bytes, big-endian. In a reversed stream the client
// orders each burst from the server, by its length in nanoseconds, 8 bytes, and its mark. It then sends no record.
//
// The client's clock bounds a burst, from its first byte, or its order, to its last byte or its record. Nothing is
// in flight before and after: all work for the counted bytes is in the time. This also holds on one CPU, where a
// sender runs ahead of the receiver.
const (
	markNone   = 0
	recordSize = 8
	orderSize  = 9
)

type blockFlow struct {
	session *session
	buf     []byte
	small   [orderSize]byte // a record or an order
}

func openBlocks(_ *connection, s *session) (flow, error) {
	return &blockFlow{session: s, buf: make([]byte, streamBuffer)}, nil
}

// send sends blocks until a time after the start, at least one; the last has a mark. The others' last segments wait for
// the next block, so that no segment is short.
func (f *blockFlow) send(start time.Time, length time.Duration, mark byte) (sent uint64, err error) {
	flags := uintptr(unix.MSG_MORE)
	for f.buf[0] = markNone; flags != 0; sent += streamBuffer {
		if time.Since(start) >= length {
			f.buf[0], flags = mark, 0
		}
		if err := f.session.transmit(f.session.fd, f.buf, flags); err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// receive reads blocks up to one with a mark. At most one block with a mark begins in a read.
func (f *blockFlow) receive() (received uint64, mark byte, err error) {
	for end := uint64(0); ; { // end is the end of the blocks that have begun
		n, err := f.session.Read(f.buf)
		if err != nil {
			return received, 0, err
		}
		if received += uint64(n); received > end {
			if mark != markNone {
				return received, 0, fmt.Errorf("%d bytes follow the mark %d", received-end, mark)
			}
			mark = f.buf[end+uint64(n)-received]
			end += streamBuffer
		}
		if mark != markNone && received == end {
			return received, mark, nil
		}
	}
}

func (f *blockFlow) carry(b burst) (r load.SliceResult, err error) {
	if f.session.spec.Reverse {
		r.Count, err = f.receiveBurst(b)
	} else {
		r.Count, err = f.sendBurst(b)
	}
	r.Seconds = time.Since(b.start).Seconds()
	return r, err
}

func (f *blockFlow) sendBurst(b burst) (uint64, error) {
	sent, err := f.send(b.start, b.length, b.kind())
	if err != nil {
		return 0, err
	}
	if err := f.session.readFull(f.small[:recordSize]); err != nil {
		return 0, fmt.Errorf("wait for the record of a burst: %w", err)
	}
	if read := binary.BigEndian.Uint64(f.small[:]); read != sent {
		return 0, fmt.Errorf("client sent %d bytes, server read %d", sent, read)
	}
	return sent, nil
}

func (f *blockFlow) receiveBurst(b burst) (uint64, error) {
	binary.BigEndian.PutUint64(f.small[:], uint64(b.length))
	f.small[recordSize] = b.kind()
	if err := f.session.write(f.small[:]); err != nil {
		return 0, err
	}
	received, mark, err := f.receive()
	if err == nil && mark != b.kind() {
		err = fmt.Errorf("a burst ends with the mark %d, want %d", mark, b.kind())
	}
	return received, err
}

// idle does nothing: the server idles after each burst.
func (f *blockFlow) idle() error { return nil }

func (f *blockFlow) end() (load.Served, error) {
	last := f.buf
	last[0] = kindEnd
	if f.session.spec.Reverse {
		last = f.small[:]
		last[recordSize] = kindEnd
	}
	if err := f.session.write(last); err != nil {
		return load.Served{}, err
	}
	return f.session.readReport()
}

func serveBlocks(s *session) error {
	f := &blockFlow{session: s, buf: make([]byte, streamBuffer)}
	if err := s.welcome(); err != nil {
		return err
	}
	for {
		if err := s.park(0); err != nil {
			return err
		}
		moved, mark, err := f.serveBurst()
		if err != nil || mark == kindEnd {
			return err
		}
		if mark == kindMeasured {
			s.Count += moved
		}
	}
}

// serveBurst receives one burst, or sends one as it is ordered, unless the mark is kindEnd.
func (f *blockFlow) serveBurst() (moved uint64, mark byte, err error) {
	if !f.session.spec.Reverse {
		if moved, mark, err = f.receive(); err != nil || mark == kindEnd {
			return 0, mark, err
		}
		binary.BigEndian.PutUint64(f.small[:], moved)
		return moved, mark, f.session.write(f.small[:recordSize])
	}
	if err := f.session.readFull(f.small[:]); err != nil {
		return 0, 0, err
	}
	length := time.Duration(binary.BigEndian.Uint64(f.small[:]))
	switch mark = f.small[recordSize]; {
	case mark == kindEnd:
		return 0, mark, nil
	case mark != kindWarmup && mark != kindMeasured || length <= 0:
		return 0, 0, fmt.Errorf("order of %v with the mark %d", length, mark)
	}
	moved, err = f.send(time.Now(), length, mark)
	return moved, mark, err
}
