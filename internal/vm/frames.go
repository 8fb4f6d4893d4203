// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// Host and guest exchange frames over one virtio port, so that the output of a command arrives before its exit code. A
// frame is a byte with its kind, the length of the data as 4 bytes in network byte order, and the data.

type kind byte

// Frames from the guest.
const (
	frameStarted kind = 'S' // the command runs
	frameStdout  kind = '1' // output of the command
	frameStderr  kind = '2'
	frameExited  kind = 'X' // the command's exit code, 1 byte; the last frame
	frameFailed  kind = 'F' // error text of a command that did not start; the last frame
)

// Frames from the host.
const (
	frameSignal kind = 'K' // signal for the command, 1 byte
	frameStdin  kind = '0' // input of the command; without data it is the end of the input
)

const (
	frameHeader = 5
	maxFrame    = 32<<10 - frameHeader // the maximum size of the data. A virtio port takes 32 KiB at a time.
	portName    = "mustang"            // the name of the virtio port
)

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

// stream is a writer that sends its input in frames.
type stream struct {
	frames *frameWriter
	what   kind
}

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
