// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestCongestion connects in labs whose namespaces have another default, as on a machine that has it.
func TestCongestion(t *testing.T) {
	s := store(t)
	for name, row := range map[string]struct {
		options  lab.Options
		from, to string
	}{
		"pod-links":   {lab.Options{Link: "veth", Datapath: lab.DatapathEBPF}, lab.PodB, lab.PodA},
		"pod-to-host": {lab.Options{Topology: lab.TopologyPodToHost, Link: "bridge"}, lab.PodB, lab.HostA},
	} {
		t.Run(name, func(t *testing.T) {
			l := up(t, s, options(row.options))
			from, to := place(t, l, row.from), place(t, l, row.to)
			testkit.Succeed(t, rtnl.In(from).SetSysctl("net/ipv4/tcp_congestion_control", "reno"))
			for _, addr := range lab.Addresses(l.Options, row.to) {
				server := testkit.Echo(t, to, "tcp", netip.AddrPortFrom(addr, 0).String())
				err := from.Do(func() error {
					conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", server.String())
					if err != nil {
						return err
					}
					defer conn.Close()
					raw, err := conn.(*net.TCPConn).SyscallConn()
					if err != nil {
						return err
					}
					return raw.Control(func(fd uintptr) {
						used, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
						testkit.Check(t, used == lab.Congestion, "connection to %v uses %q, %v", server, used, err)
					})
				})
				testkit.Check(t, err == nil, "%v", err)
			}
		})
	}
}
