// SPDX-License-Identifier: Apache-2.0

// Package message writes and reads the messages between a load agent and its parent: JSON lines. The other side may be
// any program on any machine, so messages have a bounded length and texts become printable.
package message

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
)

// Writer writes messages as JSON lines, one at a time.
type Writer struct {
	mu      sync.Mutex
	encoder *json.Encoder
}

// NewWriter writes to w.
func NewWriter(w io.Writer) *Writer {
	return &Writer{encoder: json.NewEncoder(w)}
}

// Write writes a message.
func (w *Writer) Write(message any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.encoder.Encode(message)
}

// Reader reads JSON lines of bounded length.
type Reader struct{ lines *bufio.Scanner }

// NewReader reads from r. A message has at most so many bytes.
func NewReader(r io.Reader, most int) Reader {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, most)
	return Reader{lines}
}

// Read reads the next message into what the pointer points to. The error is
// io.EOF at the end.
func (r Reader) Read(message any) error {
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
		return fmt.Errorf("invalid message %q: %s", line[:min(len(line), 80)], Printable(err.Error())) // err may quote the whole line
	}
	return nil
}

// maxText is the number of characters of an agent's text that errors show.
const maxText = 1000

// Printable returns the text of another machine in one line, without characters that
// a terminal interprets.
func Printable(text string) string {
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
