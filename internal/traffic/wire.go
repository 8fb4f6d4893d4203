// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Operations of a [command].
const (
	opListen = "listen"
	opRun    = "run"
	opCancel = "cancel"
	opLast   = "last"
)

// command is a line from the parent to the agent.
type command struct {
	// ID is repeated in the reply; it is never 0.
	ID uint64 `json:"id"`
	Op string `json:"op"`
	// Address is where to listen.
	Address netip.AddrPort `json:"address,omitzero"`
	// Guard says whom to serve there; nil means everybody.
	Guard *guard `json:"guard,omitempty"`
	// Spec is what to run.
	Spec Spec `json:"spec,omitzero"`
	// Cancel is the ID of the run to stop.
	Cancel uint64 `json:"cancel,omitempty"`
}

// reply is a line from the agent to the parent. The one with ID 0 says that
// the agent is ready.
type reply struct {
	ID          uint64         `json:"id"`
	Error       *wireError     `json:"error,omitempty"`
	Address     netip.AddrPort `json:"address,omitzero"`
	Measurement *Measurement   `json:"measurement,omitempty"`
	Served      *Served        `json:"served,omitempty"`
}

// wireError is an error that crosses the pipe.
type wireError struct {
	Message   string        `json:"message"`
	Errno     syscall.Errno `json:"errno,omitempty"`
	Cancelled bool          `json:"cancelled,omitempty"`
}

// RemoteError is what went wrong in an agent. The system's error number, where
// there was one, can be matched with errors.Is (unix.ECONNREFUSED,
// unix.ETIMEDOUT, unix.ECONNRESET, unix.EADDRINUSE).
type RemoteError struct {
	// Op is what the agent was asked to do: "listen", "run", "last".
	Op string
	// Message is the agent's own account.
	Message string
	// Errno is the system's error number, 0 where there was none.
	Errno syscall.Errno
}

// Error implements error.
func (e *RemoteError) Error() string { return fmt.Sprintf("traffic agent: %s: %s", e.Op, e.Message) }

// Unwrap gives the error number to errors.Is.
func (e *RemoteError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// toWire turns an error into its form on the pipe, nil for nil.
func toWire(err error) *wireError {
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

// lineWriter writes JSON lines, one at a time.
type lineWriter struct {
	mu      sync.Mutex
	encoder *json.Encoder
}

func newLineWriter(w io.Writer) *lineWriter { return &lineWriter{encoder: json.NewEncoder(w)} }

func (w *lineWriter) write(value any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.encoder.Encode(value)
}
