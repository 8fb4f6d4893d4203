// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestSetCongestion connects along a route of each family and reads what the sockets use.
func TestSetCongestion(t *testing.T) {
	a, b := testkit.VethPair(t)
	for _, ns := range []*netns.Namespace{a, b} {
		for _, name := range []string{"reno", "cubic", "cubic"} { // the last one wins
			if err := rtnl.In(ns).SetCongestion(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := rtnl.In(a).SetCongestion("none-such"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a congestion control that does not exist: %v", err)
	}
	for _, addr := range []string{"10.0.0.2:0", "[fd00:1::2]:0"} {
		server := testkit.Echo(t, b, "tcp", addr)
		if got := congestionTo(t, a, server); got != "cubic" {
			t.Errorf("connection to %v uses %q", server, got)
		}
	}
}

// congestionTo returns the congestion control of a connection.
func congestionTo(t *testing.T, from *netns.Namespace, to netip.AddrPort) (name string) {
	t.Helper()
	err := from.Do(func() error {
		conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", to.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			return err
		}
		var optErr error
		err = raw.Control(func(fd uintptr) {
			name, optErr = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		})
		if err == nil {
			err = optErr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return name
}
