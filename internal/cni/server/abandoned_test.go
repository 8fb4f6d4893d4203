// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// TestKilledInQueue kills a plugin whose ADD is begun and waits for a worker, and has the pod deleted, as runtimes do: the ADD is not done after that.
func TestKilledInQueue(t *testing.T) {
	either(t, func(t *testing.T, f *fixture) {
		s, stop := f.busy()
		defer stop()
		f.works(call{verb: "DEL", pod: f.add("before", "none", network("veth", "")), socket: "none"})
		before := f.state()
		p := f.pod("a", network("veth", ""))
		cmd, _, _ := f.command(call{verb: "ADD", pod: p, socket: f.socket})
		f.must(f.host.Start(cmd))
		testkit.Eventually(t, 20*time.Second, func() error {
			s.progress() // another verb has ended
			if n := len(s.queued); n != 1 {
				return fmt.Errorf("%d verbs are queued", n)
			}
			return nil
		})
		f.must(cmd.Process.Kill())
		_ = cmd.Wait()
		f.works(call{verb: "DEL", pod: p, socket: "none"})
		<-s.workers
		testkit.Eventually(t, 20*time.Second, func() error {
			if n := len(s.calls); n > 0 {
				return fmt.Errorf("%d calls are left", n)
			}
			return nil
		})
		f.same(before, "after DEL of a pod whose ADD was killed")
	})
}
