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
	if name := filepath.Base(kernel.Image); name != "vmlinux-"+kernel.Release {
		t.Errorf("guests boot %s", name)
	}
}
