// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"mustang/internal/lock"
	"mustang/internal/testkit"
)

// TestWaitForItself prints nothing while another goroutine of the process has the lock.
func TestWaitForItself(t *testing.T) {
	root := t.TempDir()
	held := testkit.Must(lock.Take(t.Context(), root, nil))(t)
	defer held.Unlock()
	var said strings.Builder
	c := Config{Environment: Environment{Stderr: &said}, wait: 1500 * time.Millisecond}
	_, err := lock.Take(c.WithWait(t.Context()), root, nil)
	testkit.Check(t, errors.Is(err, context.DeadlineExceeded) && said.Len() <= 0, "it says %q: %v", said.String(), err)
}
