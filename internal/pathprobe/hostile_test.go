// SPDX-License-Identifier: Apache-2.0

package pathprobe

import (
	"net"
	"net/netip"
	"testing"

	"mustang/internal/nodenet"
	"mustang/internal/testkit"
)

// TestHostilePeer probes peers that answer with sizes no packet has. It reports at most the device's MTU.
func TestHostilePeer(t *testing.T) {
	testkit.RequireRoot(t)
	for _, value := range []uint64{6 << 30, 1 << 62} {
		a, b := testkit.VethPair(t)
		at := netip.MustParseAddrPort("10.0.0.2:7178")
		conn := testkit.Must(open(b, at, netip.AddrPort{}))(t)
		t.Cleanup(func() { _ = conn.Close() })
		go lie(conn, value)
		path, err := Probe(t.Context(), Options{Host: a, At: at, Port: nodenet.DefaultPort})
		testkit.Check(t, err == nil && path.There == path.MTU && path.Back == path.MTU, "%d: %+v, %v", value, path, err)
	}
}

// lie answers all messages with a value, until the connection is closed.
func lie(conn *net.UDPConn, value uint64) {
	buffer := make([]byte, 1<<16)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return
		}
		m, _ := decode(buffer[:n])
		for _, kind := range []kind{kindThere, kindBack, kindWrong} {
			_, _ = conn.WriteToUDPAddrPort(message{kind, m.nonce, value}.encode(0), from)
		}
	}
}
