// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// tcpCounters count events of the TCP connections of a namespace since it was created.
type tcpCounters struct {
	// Retransmitted segments; SYNRetransmitted are the SYNs and their answers among them.
	Retransmitted, SYNRetransmitted uint64
	// Reset connections were established when an end reset them. ResetsSent also answer segments of no connection.
	Reset, ResetsSent uint64
	Overflows         uint64 // connections that a listener's full queue rejected
}

func readTCPCounters(n *netns.Namespace) (out tcpCounters, err error) {
	counters := map[string]*uint64{
		"Tcp:RetransSegs": &out.Retransmitted, "Tcp:OutRsts": &out.ResetsSent, "Tcp:EstabResets": &out.Reset,
		"TcpExt:TCPSynRetrans": &out.SYNRetransmitted, "TcpExt:ListenOverflows": &out.Overflows,
	}
	var lines []string
	err = n.Do(func() error {
		for _, file := range []string{"snmp", "netstat"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			lines = slices.AppendSeq(lines, strings.Lines(string(text)))
		}
		return nil
	})
	for ; len(lines) > 1; lines = lines[2:] {
		names, values := strings.Fields(lines[0]), strings.Fields(lines[1])
		for i := 1; i < len(names); i++ {
			if into := counters[names[0]+names[i]]; into != nil && err == nil {
				*into, err = strconv.ParseUint(values[i], 10, 64)
				delete(counters, names[0]+names[i])
			}
		}
	}
	if err == nil && len(counters) > 0 {
		err = fmt.Errorf("no counters of the names in %v", counters)
	}
	return out, err
}

// TestTCPCounters connects to a closed port, and to one whose SYNs are lost.
func TestTCPCounters(t *testing.T) {
	t.Parallel()
	testkit.RequireTool(t, "nft")
	ns := testkit.Namespace(t, "tcp-counts")
	_, err := testkit.Dial(ns, "tcp", "127.0.0.1:9")
	testkit.Check(t, err != nil, "a closed port accepted a connection")
	got := readTCP(t, ns)
	testkit.Check(t, got == (tcpCounters{ResetsSent: 1}), "after a refused connection: %+v, want one reset", got)
	echo := testkit.Echo(t, ns, "tcp", "127.0.0.1:0")
	conn, err := testkit.Dial(ns, "tcp", echo.String())
	testkit.Succeed(t, err)
	testkit.Succeed(t, errors.Join(conn.(*net.TCPConn).SetLinger(0), conn.Close()))
	got = readTCP(t, ns)
	testkit.Check(t, got.Reset != 0, "after a connection that its client reset: %+v", got)
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

func readTCP(t *testing.T, ns *netns.Namespace) tcpCounters {
	t.Helper()
	return testkit.Must(readTCPCounters(ns))(t)
}

// TestMain is also the entry point of the process that applies services until it is killed.
func TestMain(m *testing.M) {
	if root := os.Getenv(applyVariable); root != "" {
		os.Exit(applyForever(root))
	}
	os.Exit(testkit.CheckLeaks(m))
}
