// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
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

// NewMessageReader reads from r. A message has at most so many bytes.
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
