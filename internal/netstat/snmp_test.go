// SPDX-License-Identifier: Apache-2.0

package netstat_test

import (
	"net"
	"testing"

	"mustang/internal/netns"
	"mustang/internal/netstat"
	"mustang/internal/testkit"
)

// TestIPCounts sends datagrams over a namespace's loopback and looks at what its IP
// layers counted: 20 of IPv4, 30 of IPv6.
func TestIPCounts(t *testing.T) {
	t.Parallel()
	ns := testkit.Namespace(t, "ip-counts")
	before4, before6, err := netstat.ReadIPCounters(ns)
	testkit.Succeed(t, err)
	sendOver(t, ns, "127.0.0.1:0", 20)
	sendOver(t, ns, "[::1]:0", 30)
	after4, after6, err := netstat.ReadIPCounters(ns)
	testkit.Succeed(t, err)
	// The kernel sends some IPv6 packets of its own.
	if sent, delivered := after4.Sent-before4.Sent, after4.Delivered-before4.Delivered; sent != 20 || delivered != 20 {
		t.Errorf("IPv4: %d sent and %d delivered, want 20", sent, delivered)
	}
	if sent, delivered := after6.Sent-before6.Sent, after6.Delivered-before6.Delivered; sent < 30 || sent > 40 || delivered < 30 || delivered > 40 {
		t.Errorf("IPv6: %d sent and %d delivered, want 30", sent, delivered)
	}
	if after4.Forwarded+after6.Forwarded != 0 {
		t.Errorf("%d and %d forwarded in a namespace with one device", after4.Forwarded, after6.Forwarded)
	}
}

// sendOver sends datagrams to an address of a namespace, from there.
func sendOver(t *testing.T, ns *netns.Namespace, address string, packets int) {
	t.Helper()
	err := ns.Do(func() error {
		server, err := net.ListenPacket("udp", address)
		if err != nil {
			return err
		}
		defer server.Close()
		client, err := net.Dial("udp", server.LocalAddr().String())
		if err != nil {
			return err
		}
		defer client.Close()
		for range packets {
			if _, err := client.Write([]byte("x")); err != nil {
				return err
			}
		}
		return nil
	})
	testkit.Succeed(t, err)
}
