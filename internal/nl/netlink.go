// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dumpAttempts is how often a dump is tried: each one can be interrupted by a
// change to what is dumped.
const dumpAttempts = 50

// Netlink returns a route netlink handle that is bound to n and that the caller
// closes. It stays in n whichever thread uses it. It is for one goroutine.
func (n *Namespace) Netlink() (*netlink.Handle, error) {
	return n.netlink(unix.NETLINK_ROUTE)
}

func (n *Namespace) netlink(family int) (handle *netlink.Handle, err error) {
	err = n.Do(func() error {
		handle, err = netlink.NewHandle(family)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open netlink socket in network namespace %q: %w", n.Name(), err)
	}
	return handle, nil
}

// Dump calls list until its result is complete: the kernel marks a dump during
// which the dumped table changed, and signals interrupt it.
func Dump[T any](list func() ([]T, error)) ([]T, error) {
	var err error
	for range dumpAttempts {
		var all []T
		all, err = list()
		if err == nil {
			return all, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("dump interrupted %d times: %w", dumpAttempts, err)
}

// loopbackUp sets the loopback device of the calling thread's namespace up.
func loopbackUp() error {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer handle.Close()
	link, err := handle.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback device: %w", err)
	}
	if err := handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("set loopback device up: %w", err)
	}
	return nil
}
