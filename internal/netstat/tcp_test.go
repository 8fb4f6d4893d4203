// SPDX-License-Identifier: Apache-2.0

package netstat_test

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/netstat"
	"mustang/internal/testkit"
)

// TestTCPCounters connects to a port that is closed, and to one whose SYNs are lost.
func TestTCPCounters(t *testing.T) {
	t.Parallel()
	testkit.RequireTool(t, "nft")
	ns := testkit.Namespace(t, "tcp-counts")
	if _, err := testkit.Dial(ns, "tcp", "127.0.0.1:9"); err == nil {
		t.Error("a closed port accepted a connection")
	}
	if got := readTCP(t, ns); got != (netstat.TCPCounters{ResetsSent: 1}) {
		t.Errorf("after a refused connection: %+v, want one reset", got)
	}
	echo := testkit.Echo(t, ns, "tcp", "127.0.0.1:0")
	conn, err := testkit.Dial(ns, "tcp", echo.String())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(conn.(*net.TCPConn).SetLinger(0), conn.Close()); err != nil {
		t.Fatal(err)
	}
	if got := readTCP(t, ns); got.Reset == 0 {
		t.Errorf("after a connection that its client reset: %+v", got)
	}
	sent := readTCP(t, ns).ResetsSent
	testkit.Drop(t, ns, "tcp dport 9")
	testkit.Eventually(t, 3*time.Second, func() error {
		err := ns.Do(func() error {
			conn, err := net.DialTimeout("tcp", "127.0.0.1:9", 2*time.Second)
			if err == nil {
				_ = conn.Close()
				return errors.New("connected")
			}
			return nil
		})
		got := readTCP(t, ns)
		if err != nil || got.SYNRetransmitted == 0 || got.Retransmitted != got.SYNRetransmitted || got.ResetsSent != sent {
			return fmt.Errorf("after a lost SYN: %+v, %w", got, err)
		}
		return nil
	})
}

func readTCP(t *testing.T, ns *netns.Namespace) netstat.TCPCounters {
	t.Helper()
	got, err := netstat.ReadTCPCounters(ns)
	if err != nil {
		t.Fatal(err)
	}
	return got
}
