// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"
)

// MessageWriter writes messages between a load agent and its parent as JSON lines, one at a time. The other side may be
// any program on any machine, so messages have a bounded length and texts become printable.
type MessageWriter struct {
	mu      sync.Mutex
	encoder *json.Encoder
}

// NewMessageWriter writes to w.
func NewMessageWriter(w io.Writer) *MessageWriter { return &MessageWriter{encoder: json.NewEncoder(w)} }

// Write writes a message.
func (w *MessageWriter) Write(message any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.encoder.Encode(message)
}

// MessageReader reads JSON lines of bounded length.
type MessageReader struct{ lines *bufio.Scanner }

// NewMessageReader reads from r. A message longer than the limit most, in bytes, is an error.
func NewMessageReader(r io.Reader, most int) MessageReader {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, most)
	return MessageReader{lines}
}

// Read reads the next message into what the pointer points to. The error is io.EOF at the end.
func (r MessageReader) Read(message any) error {
	if !r.lines.Scan() {
		err := r.lines.Err()
		if errors.Is(err, bufio.ErrTooLong) {
			err = errors.New("message without an end")
		}
		return cmp.Or(err, io.EOF)
	}
	line := r.lines.Bytes()
	if err := json.Unmarshal(line, message); err != nil {
		// err may quote the whole line
		return fmt.Errorf("invalid message %q: %s", line[:min(len(line), 80)], Printable(err.Error()))
	}
	return nil
}

const maxText = 1000

// Printable returns the text of another machine in one line, without characters that a terminal interprets.
func Printable(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	lines = slices.DeleteFunc(lines, func(line string) bool { return line == "" })
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

const (
	// Protocol is the version of messages, headers, datagrams and reports between client and server. Any change raises it.
	Protocol = 8
	// MaxCall is the greatest length of a [Call] in bytes, for [MaxSlices] slices.
	MaxCall = 1 << 20

	maxReply = 4 << 20 // bytes of a measurement with its histogram
)

// Operations of a [Call].
const (
	OpListen = "listen"
	OpOpen   = "open"
	OpSlices = "slices"
	OpShut   = "shut"
	OpPing   = "ping" // has a reply if it has an ID
)

// Call is a message from the parent to the agent.
type Call struct {
	ID        uint64         `json:"id"` // repeated in the reply; 0 only in a ping
	Op        string         `json:"op"`
	Address   netip.AddrPort `json:"address,omitzero"`    // to listen on
	Namespace string         `json:"namespace,omitempty"` // the path of the namespace to listen in
	Spec      Spec           `json:"spec,omitzero"`       // to open
	Slices    []Slice        `json:"slices,omitempty"`    // to run
	Conn      uint64         `json:"conn,omitempty"`      // the connection to shut
}

// Reply is a message from the agent to the parent.
type Reply struct {
	ID          uint64         `json:"id"`
	Hello       *Hello         `json:"hello,omitempty"`
	Error       *RemoteError   `json:"error,omitempty"`
	Address     netip.AddrPort `json:"address,omitzero"`
	Measurement Measurement    `json:"measurement,omitzero"`
	Histogram   []byte         `json:"histogram,omitempty"` // of the measurement, in the compressed form of HdrHistogram
	Conn        Conn           `json:"conn,omitzero"`
	Slices      []SliceResult  `json:"slices,omitempty"`
}

// Hello is in the agent's first reply, which has ID 0.
type Hello struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"` // of the program
}

func (r Reply) checkHello() error {
	switch {
	case r.ID != 0 || r.Hello == nil:
		return errors.New("the agent did not say hello: is it of the same version?")
	case r.Hello.Protocol != Protocol:
		return fmt.Errorf("the agent speaks version %d of the load protocol (mustang %s), want version %d: "+
			"install the same mustang there", r.Hello.Protocol, Printable(r.Hello.Version), Protocol)
	}
	return nil
}

// RemoteError is an error of an agent. Its error number can be matched with errors.Is (such as unix.ECONNREFUSED).
type RemoteError struct {
	Op      string        `json:"-"`               // "listen", "open", "slices", "shut" or "ping"
	Message string        `json:"message"`         // the agent's
	Errno   syscall.Errno `json:"errno,omitempty"` // 0 if the error has none
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

// Conn is a connection of an agent that stays open between slices. ID names it in slices of this agent.
type Conn struct {
	ID uint64 `json:"id"`
}

// Slice is a turn of a connection: it carries load for Lead, which is not counted, and then for Duration. When it ends,
// nothing of it is in flight.
type Slice struct {
	Conn     uint64        `json:"conn"`
	Lead     time.Duration `json:"lead,omitempty"` // 0 means a tenth of Duration, a negative lead none
	Duration time.Duration `json:"duration"`
}

// LeadTime returns the time that is not counted.
func (s Slice) LeadTime() time.Duration { return max(cmp.Or(s.Lead, s.Duration/10), 0) }
