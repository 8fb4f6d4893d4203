// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"bytes"
	"crypto/rand"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

// pingTimeout is how long an echo may take.
const pingTimeout = 3 * time.Second

// ping sends an ICMP echo request with that many bytes of data from inside ns,
// not to be fragmented, and waits for the reply.
func ping(t *testing.T, ns *nl.Namespace, addr netip.Addr, size int) {
	t.Helper()
	data := make([]byte, size)
	_, _ = rand.Read(data)
	request := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: 1 + int(data[0]), Seq: 1, Data: data}}
	network, protocol, reply := "ip4:icmp", 1, icmp.Type(ipv4.ICMPTypeEchoReply)
	if addr.Is6() {
		request.Type = ipv6.ICMPTypeEchoRequest
		network, protocol, reply = "ip6:ipv6-icmp", 58, ipv6.ICMPTypeEchoReply
	}
	packet, err := request.Marshal(nil) // in IPv6, the kernel adds the checksum
	if err != nil {
		t.Fatal(err)
	}
	conn := dialICMP(t, ns, network, addr)
	if _, err := conn.Write(packet); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(pingTimeout)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := conn.ReadFromIP(buffer) // unlike Read, without the IPv4 header
		if err != nil {
			t.Fatalf("no reply from %v: %v", addr, err)
		}
		message, err := icmp.ParseMessage(protocol, buffer[:n])
		if err != nil {
			t.Fatal(err)
		}
		// A pod that pings itself sees its request too.
		if echo, ok := message.Body.(*icmp.Echo); ok && message.Type == reply {
			if !bytes.Equal(echo.Data, data) {
				t.Errorf("sent %d bytes, received %d others", len(data), len(echo.Data))
			}
			return
		}
	}
}

// dialICMP opens a raw socket inside ns that exchanges ICMP messages with addr
// only, and sends no fragments.
func dialICMP(t *testing.T, ns *nl.Namespace, network string, addr netip.Addr) *net.IPConn {
	t.Helper()
	var conn *net.IPConn
	err := ns.Do(func() (err error) {
		conn, err = net.DialIP(network, nil, &net.IPAddr{IP: addr.AsSlice()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
	if addr.Is6() {
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO
	}
	err = errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) }), err)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
