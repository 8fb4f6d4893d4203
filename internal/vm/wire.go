// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// Host and guest talk over one virtio port, so that all that a command wrote is
// there before its end is told. Both send frames: a byte that says what it is,
// the length of what follows as 4 bytes, and that.

// kind is what a frame is.
type kind byte

// What the guest sends.
const (
	frameStarted kind = 'S' // the command runs
	frameStdout  kind = '1' // output of the command
	frameStderr  kind = '2'
	frameExited  kind = 'X' // the command's exit code, 1 byte; the last frame
	frameTaken   kind = 'T' // the command has the last frameStdin
	frameFailed  kind = 'F' // why it could not be run, as text; the last frame
)

// What the host sends.
const (
	frameSignal kind = 'K' // a signal for the command, 1 byte
	// frameStdin is input of the command; without data it is the end of it. The next
	// one is sent when this one is taken, so a command that does not read its input
	// gets signals nevertheless.
	frameStdin kind = '0'
)

const (
	frameHeader = 5
	// maxFrame is what one frame may carry. A virtio port takes 32 KiB at a time.
	maxFrame = 32<<10 - frameHeader
	// portName is the name of the virtio port.
	portName = "mustang"
)

// frameWriter writes frames, from several goroutines at once.
type frameWriter struct {
	mu  sync.Mutex
	w   io.Writer
	buf []byte
}

func (f *frameWriter) write(what kind, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buf = append(f.buf[:0], byte(what))
	f.buf = binary.BigEndian.AppendUint32(f.buf, uint32(len(data)))
	f.buf = append(f.buf, data...)
	_, err := f.w.Write(f.buf)
	return err
}

// stream makes frames of what is written to it.
type stream struct {
	frames *frameWriter
	what   kind
}

// Write implements io.Writer.
func (s stream) Write(data []byte) (n int, err error) {
	for n < len(data) {
		part := data[n:min(len(data), n+maxFrame)]
		if err := s.frames.write(s.what, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// frame is a frame as it was read.
type frame struct {
	what kind
	data []byte
}

func readFrame(r io.Reader) (frame, error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return frame{}, err
	}
	size := binary.BigEndian.Uint32(header[1:])
	if size > maxFrame {
		return frame{}, fmt.Errorf("frame %q of %d bytes: want at most %d", header[0], size, maxFrame)
	}
	f := frame{what: kind(header[0]), data: make([]byte, size)}
	_, err := io.ReadFull(r, f.data)
	return f, err
}
