// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// WatchPackets keeps the size in bytes of the largest packet that the device of an index in ns sends or receives, until
// the test ends. inspect, if not nil, is called with each packet that it receives, one after the other.
func WatchPackets(t testing.TB, ns *netns.Namespace, index int, inspect func(packet []byte)) *atomic.Int64 {
	t.Helper()
	var fd int
	err := ns.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}))
	})
	Succeed(t, err)
	var largest atomic.Int64
	var stop atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		packet := make([]byte, 1<<19)
		for !stop.Load() {
			n, from, err := unix.Recvfrom(fd, packet, unix.MSG_TRUNC)
			if err != nil {
				continue // nothing came in time
			}
			largest.Store(max(largest.Load(), int64(n)))
			link, ok := from.(*unix.SockaddrLinklayer)
			if inspect != nil && ok && link.Pkttype != unix.PACKET_OUTGOING {
				inspect(packet[:min(n, len(packet))])
			}
		}
	}()
	t.Cleanup(func() {
		stop.Store(true)
		<-stopped
		_ = unix.Close(fd)
	})
	return &largest
}
