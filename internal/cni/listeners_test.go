// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// TestPortOfProcess refuses a host port at which a process of the host listens, as Docker and Podman do. A socket at another address, another
// protocol's, or one with a peer takes nothing that comes to the port.
func TestPortOfProcess(t *testing.T) {
	f := newFixture(t)
	f.plugin.Cgroup = testkit.Cgroup(t)
	own := hostAddresses[0].Addr().String()
	at := func(protocol, hostIP string) []byte {
		return network("net", "veth", fmt.Sprintf(`,"runtimeConfig":{"portMappings":[{"hostPort":5302,"containerPort":80,"protocol":%q,"hostIP":%q}]}`, protocol, hostIP))
	}
	f.must(f.del(f.added("first", at("tcp", own))))
	before := f.left()
	for _, row := range []struct {
		network, listens, protocol, hostIP string
		refused                            string // empty: it is not
	}{
		{"tcp4", "0.0.0.0:5302", "tcp", "0.0.0.0", "5302/tcp is in use by a process of the host, at 0.0.0.0:5302"},
		{"tcp", "[::]:5302", "tcp", own, own + ":5302/tcp is in use by a process of the host, at [::]:5302"},
		{"tcp6", "[::]:5302", "tcp", "::", "at [::]:5302"},
		{"tcp6", "[::]:5302", "tcp", own, ""}, // IPV6_V6ONLY
		{"tcp", own + ":5302", "tcp", "0.0.0.0", "at " + own + ":5302"},
		{"udp4", "0.0.0.0:5302", "udp", own, "at 0.0.0.0:5302"},
		{"udp", "[2001:db8::1]:5302", "udp", "::", "at [2001:db8::1]:5302"},
		{"tcp", own + ":5302", "udp", "0.0.0.0", ""},
		{"udp", own + ":5302", "tcp", "0.0.0.0", ""},
		{"tcp", own + ":5303", "tcp", "0.0.0.0", ""},
		{"tcp", "127.0.0.1:5302", "tcp", own, ""},
		{"udp", "127.0.0.1:5302", "udp", own, ""},
	} {
		var socket io.Closer
		f.must(f.host.Do(func() (err error) {
			if strings.HasPrefix(row.network, "udp") {
				socket, err = net.ListenPacket(row.network, row.listens)
			} else {
				socket, err = net.Listen(row.network, row.listens)
			}
			return err
		}))
		p := f.pod("a", at(row.protocol, row.hostIP))
		if err := f.add(p); row.refused != "" {
			f.oneLine(err, row.refused)
			f.same(before, row.refused)
		} else if err != nil {
			t.Errorf("%s at %s beside %s at %s: %v", row.protocol, row.hostIP, row.network, row.listens, err)
		}
		f.must(socket.Close())
		f.must(f.del(p))
	}
	// Sockets with a peer.
	testkit.Echo(t, f.outside, "tcp", outsideAddresses[0].Addr().String()+":80")
	for _, protocol := range []string{"tcp", "udp"} {
		var conn net.Conn
		f.must(f.host.Do(func() (err error) {
			var local net.Addr = &net.TCPAddr{Port: 5302}
			if protocol == "udp" {
				local = &net.UDPAddr{Port: 5302}
			}
			conn, err = (&net.Dialer{LocalAddr: local}).DialContext(t.Context(), protocol, outsideAddresses[0].Addr().String()+":80")
			return err
		}))
		p := f.added("a", at(protocol, "0.0.0.0"))
		f.must(conn.Close())
		f.must(f.del(p))
	}
}
