// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"

	"mustang/internal/cni/handover"
)

// Client returns the CNI plugin for nodes with an agent, nil if there is none for this processor. The caller must not change it.
// It is a program of some kilobytes in C, which starts in a fraction of the time of a Go program. It hands the verb to the agent
// (package handover), and else runs the plugin in Go, which lies beside it.
func Client() []byte { return clientProgram }

// maxClientSize is more than the size of any version's program in bytes.
const maxClientSize = 64 << 10

// isClient reports whether a file is the program, of this version or another.
func isClient(file []byte) bool {
	return len(file) < maxClientSize && bytes.HasPrefix(file, []byte("\x7fELF")) && bytes.Contains(file, []byte(handover.ResultVariable+"="))
}
