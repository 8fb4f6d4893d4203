// SPDX-License-Identifier: Apache-2.0

// Package client has the CNI plugin for nodes with an agent: a program of some kilobytes in C, which starts in a fraction of the time of a Go
// program, hands the verb to the agent (package handover), and else runs the plugin in Go, which lies beside it.
package client

import (
	"bytes"

	"mustang/internal/cni/handover"
)

// Program returns the program for this processor, nil if there is none. The caller must not change it.
func Program() []byte { return program }

// maxSize is more than the size of any version's program in bytes.
const maxSize = 64 << 10

// Is reports whether a file is the program, of this version or another.
func Is(file []byte) bool {
	return len(file) < maxSize && bytes.HasPrefix(file, []byte("\x7fELF")) && bytes.Contains(file, []byte(handover.ResultVariable+"="))
}
