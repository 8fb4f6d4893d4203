// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"path/filepath"
	"testing"

	"mustang/internal/testkit"
)

// TestUncompress checks that the guests of tests boot an uncompressed kernel.
func TestUncompress(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireTool(t, qemu)
	testkit.RequireTool(t, "zstd")
	kernel := testkit.Must(fetchOnce())(t)
	name := filepath.Base(kernel.Image)
	testkit.Check(t, name == "vmlinux-"+kernel.Release, "guests boot %s", name)
}
