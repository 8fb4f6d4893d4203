// SPDX-License-Identifier: Apache-2.0

package message

import (
	"strings"
	"testing"
)

// TestPrintable checks that the text of another machine becomes one line of bounded length.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "",
		"one\n\n  two\r\n":             "one; two",
		"\x1b]0;title\a \x00 \xff é":   "?]0;title? ? \ufffd é",
		strings.Repeat("é", maxText+5): "..." + strings.Repeat("é", maxText),
	} {
		if got := Printable(text); got != want {
			t.Errorf("Printable(%q) = %q, want %q", text, got, want)
		}
	}
}
