// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"unicode"

	"golang.org/x/sys/unix"
)

// protocolVersion is the version of the messages between parent and agent, and of the
// headers, datagrams and reports between client and server. Any change raises it.
const protocolVersion = 1

// Bounds of a message in bytes.
const (
	maxCommand = 64 << 10
	maxReply   = 4 << 20 // a measurement with its histogram
)

// Operations of a [command].
const (
	opListen = "listen"
	opRun    = "run"
	opCancel = "cancel"
	opLast   = "last"
	opPing   = "ping" // has no reply
)

// command is a message from the parent to the agent.
type command struct {
	// ID is repeated in the reply; it is never 0.
	ID uint64 `json:"id"`
	Op string `json:"op"`
	// Address is the address to listen on.
	Address netip.AddrPort `json:"address,omitzero"`
	// Spec is the run.
	Spec Spec `json:"spec,omitzero"`
	// Cancel is the ID of the run to cancel.
	Cancel uint64 `json:"cancel,omitempty"`
}

// reply is a message from the agent to the parent.
type reply struct {
	ID          uint64         `json:"id"`
	Hello       *hello         `json:"hello,omitempty"`
	Error       *wireError     `json:"error,omitempty"`
	Address     netip.AddrPort `json:"address,omitzero"`
	Measurement *Measurement   `json:"measurement,omitempty"`
	Served      *Served        `json:"served,omitempty"`
}

// hello is in the agent's first reply, which has ID 0.
type hello struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"` // of the program
}

// checkHello returns an error unless the reply says hello in this protocol.
func (r reply) checkHello() error {
	switch {
	case r.ID != 0 || r.Hello == nil:
		return errors.New("the agent did not say hello: is it of the same version?")
	case r.Hello.Protocol != protocolVersion:
		return fmt.Errorf("the agent speaks version %d of the load protocol (mustang %s), want version %d: "+
			"install the same mustang there", r.Hello.Protocol, printable(r.Hello.Version), protocolVersion)
	}
	return nil
}

// wireError is an error in a reply.
type wireError struct {
	Message   string        `json:"message"`
	Errno     syscall.Errno `json:"errno,omitempty"`
	Cancelled bool          `json:"cancelled,omitempty"`
}

// newWireError converts an error for a reply, nil to nil.
func newWireError(err error) *wireError {
	if err == nil {
		return nil
	}
	w := &wireError{Message: err.Error(), Cancelled: errors.Is(err, errCancelled)}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		w.Errno = unix.ETIMEDOUT
	}
	errors.As(err, &w.Errno)
	return w
}

// RemoteError is an error of an agent. Its error number can be matched with errors.Is
// (unix.ECONNREFUSED, unix.ETIMEDOUT, unix.ECONNRESET, unix.EADDRINUSE).
type RemoteError struct {
	// Op is the operation: "listen", "run" or "last".
	Op string
	// Message is the agent's error text.
	Message string
	// Errno is the system's error number, 0 if the error has none.
	Errno syscall.Errno
}

// Error implements error.
func (e *RemoteError) Error() string { return fmt.Sprintf("load agent: %s: %s", e.Op, e.Message) }

// Unwrap gives the error number to errors.Is.
func (e *RemoteError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// messageWriter writes messages as JSON lines, one at a time.
type messageWriter struct {
	mu      sync.Mutex
	encoder *json.Encoder
}

func newMessageWriter(w io.Writer) *messageWriter {
	return &messageWriter{encoder: json.NewEncoder(w)}
}

func (w *messageWriter) write(message any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.encoder.Encode(message)
}

// messageReader reads JSON lines of bounded length.
type messageReader struct{ lines *bufio.Scanner }

func newMessageReader(r io.Reader, most int) messageReader {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, most)
	return messageReader{lines}
}

// read reads the next message into a pointer to a [command] or a [reply]. The error is
// io.EOF at the end.
func (r messageReader) read(message any) error {
	if !r.lines.Scan() {
		err := r.lines.Err()
		switch {
		case errors.Is(err, bufio.ErrTooLong):
			return errors.New("message without an end")
		case err != nil:
			return err
		}
		return io.EOF
	}
	line := r.lines.Bytes()
	if err := json.Unmarshal(line, message); err != nil {
		return fmt.Errorf("invalid message %q: %w", line[:min(len(line), 80)], err)
	}
	return nil
}

// maxText is the number of characters of an agent's text that errors show.
const maxText = 1000

// printable returns the text of another machine in one line, without characters that
// a terminal interprets.
func printable(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.Join(lines, "; "))
	if runes := []rune(text); len(runes) > maxText {
		text = "..." + string(runes[len(runes)-maxText:])
	}
	return text
}

// maxTail is the number of bytes of an agent's standard error that are kept.
const maxTail = 4096

// tail keeps the end of its input.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if len(t.buf) > maxTail {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-maxTail:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
