// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"net"
	"testing"

	"mustang/internal/testkit"
)

// TestIPCounts sends datagrams over a namespace's loopback and looks at what its IP
// layer counted.
func TestIPCounts(t *testing.T) {
	t.Parallel()
	ns := testkit.Namespace(t, "ip-counts")
	before, err := ns.IPCounts()
	if err != nil {
		t.Fatal(err)
	}
	const packets = 20
	err = ns.Do(func() error {
		server, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer server.Close()
		client, err := net.Dial("udp4", server.LocalAddr().String())
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
	if err != nil {
		t.Fatal(err)
	}
	after, err := ns.IPCounts()
	if err != nil {
		t.Fatal(err)
	}
	if sent, delivered := after.Sent-before.Sent, after.Delivered-before.Delivered; sent != packets || delivered != packets {
		t.Errorf("%d sent and %d delivered, want %d", sent, delivered, packets)
	}
	if after.Forwarded != 0 {
		t.Errorf("%d forwarded in a namespace with one device", after.Forwarded)
	}
}
