// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// TestEndsBeforeWaitingVerb ends a server while a verb waits for the lock of a process that is stopped: the server does not wait as long. The verb
// ends once the lock is free.
func TestEndsBeforeWaitingVerb(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.add("a", "none", network("veth", ""))
	s, err := Listen(f.options())
	f.must(err)
	s.farewell = 300 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()

	dir, err := os.Open(filepath.Join(f.plugin.StateDir, "net"))
	f.must(err)
	f.must(unix.Flock(int(dir.Fd()), unix.LOCK_EX))
	cmd, stdout, _ := f.command(call{verb: "DEL", pod: p, socket: f.socket})
	f.must(f.host.Start(cmd))
	testkit.Eventually(t, 10*time.Second, func() error {
		if len(s.workers) != 1 {
			return fmt.Errorf("%d verbs have begun", len(s.workers))
		}
		return nil
	})
	cancel()
	select {
	case err := <-ended:
		f.must(err)
	case <-time.After(5 * time.Second):
		t.Error("the server waits for the verb")
	}
	f.must(dir.Close())
	if err := cmd.Wait(); err != nil {
		t.Errorf("DEL: %v: %s", err, stdout)
	}
}
