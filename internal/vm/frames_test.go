// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"testing"

	"mustang/internal/testkit"
)

// FuzzReadFrame reads frames from any bytes: what a guest sends is not trusted. A frame
// that is read and written again is the same bytes.
func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{'1', 0, 0, 0, 2, 'h', 'i'})
	f.Add([]byte{'X', 0, 0, 0, 1, 7})
	f.Add([]byte{'S', 0, 0, 0, 0, 'X'})
	f.Add([]byte{'1', 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		read, err := readFrame(bytes.NewReader(data))
		if err != nil {
			return
		}
		var out bytes.Buffer
		testkit.Succeed(t, (&frameWriter{w: &out}).write(read.what, read.data))
		testkit.Check(t, len(read.data) <= maxFrame && bytes.HasPrefix(data, out.Bytes()),
			"% x was read as %q with %d bytes", data, read.what, len(read.data))
	})
}
