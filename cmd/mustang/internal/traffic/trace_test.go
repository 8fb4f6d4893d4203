// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

// TestOneTrace refuses a second trace, and ends one whose datapath is removed.
func TestOneTrace(t *testing.T) {
	testkit.RequireRoot(t)
	root := testkit.BPFFS(t) + "/mustang"
	testkit.Succeed(t, testkit.Must(datapath.Open(t.Context(), datapath.Options{Root: root}))(t).Close())
	run := func(ctx context.Context) error {
		cmd := trace(&cli.Config{Environment: cli.Environment{Stdout: io.Discard, Stderr: io.Discard}, BPFRoot: root})
		cmd.SetArgs([]string{})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		return cmd.ExecuteContext(ctx)
	}
	ended := make(chan error, 1)
	start := func() { ended <- run(t.Context()) }
	go start()
	testkit.Eventually(t, 10*time.Second, func() error {
		select {
		case <-ended: // the second one was first
			go start()
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := run(ctx); err == nil || !strings.Contains(err.Error(), "another monitor or policy trace runs") {
			return fmt.Errorf("a second trace: %v", err)
		}
		return nil
	})
	testkit.Succeed(t, objects.Remove(t.Context(), root))
	if err := <-ended; err == nil || err.Error() != "the datapath was removed: there is nothing to monitor any more" {
		t.Errorf("the trace ends with %v", err)
	}
}
