// SPDX-License-Identifier: Apache-2.0

package netstat

import (
	"fmt"
	"os"

	"mustang/internal/netns"
)

// TCPCounters count what the TCP connections of a namespace met since it was created.
type TCPCounters struct {
	// Retransmitted segments; SYNRetransmitted are the SYNs and their answers among them.
	Retransmitted, SYNRetransmitted uint64
	// Reset connections were established when an end reset them. ResetsSent also answer segments of no connection.
	Reset, ResetsSent uint64
	// Overflows are connections for which a listener had no room.
	Overflows uint64
}

// ReadTCPCounters reads the counters, which both families share.
func ReadTCPCounters(n *netns.Namespace) (out TCPCounters, err error) {
	err = n.Do(func() error {
		for _, file := range []struct {
			path, protocol string
			counters       map[string]*uint64
		}{
			{"/proc/thread-self/net/snmp", "Tcp:", map[string]*uint64{"RetransSegs": &out.Retransmitted, "OutRsts": &out.ResetsSent, "EstabResets": &out.Reset}},
			{"/proc/thread-self/net/netstat", "TcpExt:", map[string]*uint64{"TCPSynRetrans": &out.SYNRetransmitted, "ListenOverflows": &out.Overflows}},
		} {
			text, err := os.ReadFile(file.path)
			if err != nil {
				return err
			}
			if err := parseSNMP(string(text), file.protocol, file.counters); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return TCPCounters{}, fmt.Errorf("read TCP counters of network namespace %q: %w", n.Name(), err)
	}
	return out, nil
}
