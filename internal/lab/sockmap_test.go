// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/testkit"
)

// TestSockmapKeepsOrder sends bytes one by one to a server whose socket exists only once the first of them has come by
// TCP. What follows must not overtake it.
func TestSockmapKeepsOrder(t *testing.T) {
	o := options(lab.Options{Topology: lab.TopologyPodLinks, Link: "veth", Sockmap: true})
	testkit.RequireMode(t, o.Probe())
	l := up(t, store(t), o)
	var want []byte
	for i := range 100 {
		want = append(want, byte(i))
	}
	deferred := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 10)
		}), err)
	}}
	testkit.Succeed(t, l.Within(func() error {
		var server net.Listener
		testkit.Succeed(t, place(t, l, lab.PodA).Do(func() (err error) {
			server, err = deferred.Listen(t.Context(), "tcp", netip.AddrPortFrom(lab.PodAIPs[0], lab.PlainPort).String())
			return err
		}))
		defer server.Close()
		for range 50 {
			var client net.Conn
			testkit.Succeed(t, place(t, l, lab.PodB).Do(func() (err error) {
				client, err = net.Dial("tcp", server.Addr().String())
				return err
			}))
			for i := range want {
				_ = testkit.Must(client.Write(want[i : i+1]))(t)
			}
			accepted, got := testkit.Must(server.Accept())(t), make([]byte, len(want))
			_, err := io.ReadFull(accepted, got)
			testkit.Require(t, err == nil && bytes.Equal(got, want), "%v, received % x", err, got)
			testkit.Succeed(t, errors.Join(client.Close(), accepted.Close()))
		}
		return nil
	}))
}
