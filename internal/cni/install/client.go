// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"strconv"

	"mustang/internal/datapath/objects"
	"mustang/internal/version"
)

// Client returns the CNI plugin for nodes with an agent, nil if there is none for this processor. The caller must not change it.
// It is a program of some kilobytes in C, which starts in a fraction of the time of a Go program. It hands the verb to the agent
// (package handover), and else runs the plugin in Go, which lies beside it. Its requests name the version of this program.
func Client() []byte {
	return stamp(clientProgram, version.Program(), strconv.Itoa(objects.LayoutVersion))
}

// place begins the 256 bytes of the program where its version and layout go.
const (
	place     = "MUSTANG_BUILD"
	placeSize = 256
)

// stamp returns the program with a version and a layout of maps. If they are too long, it returns the program as it is,
// and agents decline its requests.
func stamp(program []byte, version, layout string) []byte {
	out := bytes.Clone(program)
	text := version + "\x00" + layout + "\x00"
	if at := bytes.Index(out, []byte(place)); at >= 0 && len(text) <= placeSize {
		clear(out[at : at+placeSize])
		copy(out[at:], text)
	}
	return out
}

// maxClientSize is more than the size of any version's program in bytes.
const maxClientSize = 64 << 10

// clientMark is in every version's program: the variable that it sets for the plugin.
const clientMark = "MUSTANG_CNI_HANDOVER="

// isClient reports whether a file is the program, of this version or another.
func isClient(file []byte) bool {
	return len(file) < maxClientSize && bytes.HasPrefix(file, []byte("\x7fELF")) && bytes.Contains(file, []byte(clientMark))
}
