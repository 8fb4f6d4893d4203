// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// TestPrintable checks that the text of another machine becomes one line of bounded length.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "",
		"one\n\n  two\r\n":             "one; two",
		"\x1b]0;title\a \x00 \xff é":   "?]0;title? ? \ufffd é",
		strings.Repeat("é", maxText+5): "..." + strings.Repeat("é", maxText),
	} {
		got := Printable(text)
		testkit.Check(t, got == want, "Printable(%q) = %q, want %q", text, got, want)
	}
}

// TestInvalidMessage checks that the error about a message that quotes itself at length is short and printable.
func TestInvalidMessage(t *testing.T) {
	line := `{"address":"` + strings.Repeat("\x1b", 13) + strings.Repeat("\x80", 13000) + `"}`
	var m struct{ Address netip.Addr }
	err := NewMessageReader(strings.NewReader(line), 1<<16).Read(&m)
	testkit.Check(t, err != nil && len(err.Error()) <= 3*maxText && !strings.Contains(err.Error(), "\x1b"),
		"error of %d bytes: %v", len(fmt.Sprint(err)), err)
	line = `{"address":"` + strings.Repeat("a", 13000) + `"}`
	err = NewMessageReader(strings.NewReader(line), 1<<16).Read(&m)
	testkit.Check(t, err != nil && len(err.Error()) <= 3*maxText, "error of %d bytes", len(fmt.Sprint(err)))
}
