// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// TestBuffersWithoutPrivileges sets the buffers on a thread without capabilities.
func TestBuffersWithoutPrivileges(t *testing.T) {
	const size = 1 << 30 // more than anyone may have
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends
		failed <- func() error {
			header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
			if err := unix.Capset(&header, &none[0]); err != nil {
				return err
			}
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			before, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
			if err != nil {
				return err
			}
			if err := setBuffers(fd, size); err != nil {
				return err
			}
			got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
			testkit.Check(t, err == nil && got >= before && got < size, "buffer of %d bytes, had %d: %v", got, before, err)
			return nil
		}()
	}()
	err := <-failed
	testkit.Check(t, err == nil, "%v", err)
}
