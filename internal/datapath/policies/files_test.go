// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// TestReadFile refuses a pipe in place of a file, and is content without one.
func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cli.json")
	_, there, err := readFile(path)
	testkit.Check(t, !there && err == nil, "no file: %t, %v", there, err)
	testkit.Succeed(t, unix.Mkfifo(path, 0o600))
	_, _, err = readFile(path)
	testkit.Check(t, err != nil && err.Error() == path+": not a regular file", "a pipe: %v", err)
}
