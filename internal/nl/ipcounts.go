// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// IPCounts is what the IPv4 layer of a namespace has counted, in packets. One may
// be a batch of segments (GSO).
type IPCounts struct {
	// Delivered were for the namespace itself, Forwarded passed through it, and Sent
	// came from it.
	Delivered, Forwarded, Sent uint64
}

// IPCounts reads the counters of n's IPv4 layer (RFC 4293's ipInDelivers,
// ipForwDatagrams and ipOutRequests). Linux counts what it forwards as sent too;
// that is taken off.
func (n *Namespace) IPCounts() (c IPCounts, err error) {
	var text []byte
	err = n.Do(func() error {
		var err error
		text, err = os.ReadFile("/proc/thread-self/net/snmp")
		return err
	})
	if err == nil {
		c, err = parseIPCounts(string(text))
	}
	if err != nil {
		return c, fmt.Errorf("read IP counters of network namespace %q: %w", n.Name(), err)
	}
	return c, nil
}

// parseIPCounts reads the two lines that begin with "Ip:": names, then numbers.
func parseIPCounts(text string) (IPCounts, error) {
	var lines [][]string
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "Ip:"); ok {
			lines = append(lines, strings.Fields(rest))
		}
	}
	if len(lines) != 2 || len(lines[0]) != len(lines[1]) {
		return IPCounts{}, fmt.Errorf("%d lines of IP counters, want 2 of the same length", len(lines))
	}
	var c IPCounts
	for i, name := range lines[0] {
		into := map[string]*uint64{"InDelivers": &c.Delivered, "ForwDatagrams": &c.Forwarded, "OutRequests": &c.Sent}[name]
		if into == nil {
			continue
		}
		value, err := strconv.ParseUint(lines[1][i], 10, 64)
		if err != nil {
			return IPCounts{}, fmt.Errorf("IP counter %s: %w", name, err)
		}
		*into = value
	}
	return c, nil
}
