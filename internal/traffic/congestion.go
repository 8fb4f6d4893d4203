// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// defaultCongestion is used where the kernel has it, so that figures from
// machines with other defaults compare.
const defaultCongestion = "cubic"

// withCongestion returns what net.Dialer and net.ListenConfig call on a socket
// before it connects or listens. That is the time to choose: a socket that has
// been connected under bbr goes on pacing what it sends by a timer, whatever it
// is switched to then. Accepted sockets inherit the listener's choice.
func withCongestion(name string) func(network, address string, c syscall.RawConn) error {
	wanted := name
	if wanted == "" {
		wanted = defaultCongestion
	}
	return func(_, _ string, c syscall.RawConn) error {
		var setErr error
		if err := c.Control(func(fd uintptr) {
			setErr = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, wanted)
		}); err != nil {
			return err
		}
		if setErr != nil && name != "" {
			return fmt.Errorf("set congestion control %q: %w", name, setErr)
		}
		return nil
	}
}
