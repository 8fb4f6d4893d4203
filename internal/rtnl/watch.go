// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"context"
	"errors"
	"fmt"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Watch tells of changes of devices, addresses and routes of the namespace until the context ends: the channel, which has room for
// one, has a value after them. The kernel tells nothing of IPv4 routes that go with a device or an address.
func (c Conn) Watch(ctx context.Context) (<-chan struct{}, error) {
	var socket *vnl.NetlinkSocket
	err := c.ns.Do(func() (err error) {
		socket, err = vnl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
			unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
		return err
	})
	if err == nil {
		err = socket.SetReceiveTimeout(&unix.Timeval{Usec: 200_000}) // closing it would not wake a reader
	}
	if err != nil {
		return nil, fmt.Errorf("watch network namespace %q: %w", c.ns.Name(), err)
	}
	changed := make(chan struct{}, 1)
	go func() {
		defer socket.Close()
		for ctx.Err() == nil {
			if _, _, err := socket.Receive(); errors.Is(err, unix.EAGAIN) {
				continue
			}
			// Errors are that some were lost.
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed, nil
}
