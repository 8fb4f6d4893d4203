// SPDX-License-Identifier: Apache-2.0

package netstat

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"mustang/internal/netns"
)

// ChecksumErrors counts received packets with a wrong checksum since the namespace was created.
type ChecksumErrors struct{ TCP, UDP uint64 }

// ReadChecksumErrors reads the counters of both families. TCP has one counter for both.
func ReadChecksumErrors(n *netns.Namespace) (out ChecksumErrors, err error) {
	err = n.Do(func() error {
		snmp, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		if out.TCP, err = snmpValue(snmp, "Tcp:", "InCsumErrors"); err != nil {
			return err
		}
		if out.UDP, err = snmpValue(snmp, "Udp:", "InCsumErrors"); err != nil {
			return err
		}
		snmp6, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if os.IsNotExist(err) {
			return nil // a kernel without IPv6
		}
		if err != nil {
			return err
		}
		udp6, err := snmp6Value(snmp6, "Udp6InCsumErrors")
		out.UDP += udp6
		return err
	})
	if err != nil {
		return ChecksumErrors{}, fmt.Errorf("read counters of network namespace %q: %w", n.Name(), err)
	}
	return out, nil
}

// snmpValue finds a counter in /proc/net/snmp: pairs of lines, names and then values.
func snmpValue(data []byte, protocol, counter string) (uint64, error) {
	var names []string
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] != protocol {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if name == counter && i < len(fields) {
				return strconv.ParseUint(fields[i], 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("no counter %s %s", protocol, counter)
}

// snmp6Value finds a counter in /proc/net/snmp6: a name and a value per line.
func snmp6Value(data []byte, counter string) (uint64, error) {
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) == 2 && fields[0] == counter {
			return strconv.ParseUint(fields[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("no counter %s", counter)
}

// IPCounters are packet counters of a namespace's IPv4 layer. A GSO packet counts as one.
type IPCounters struct {
	// Delivered were for the namespace itself, Forwarded passed through it, and Sent
	// came from it.
	Delivered, Forwarded, Sent uint64
}

// ReadIPCounters reads ipInDelivers, ipForwDatagrams and ipOutRequests (RFC 4293). Linux counts forwarded packets as
// sent too; ReadIPCounters subtracts them.
func ReadIPCounters(n *netns.Namespace) (c IPCounters, err error) {
	var text []byte
	err = n.Do(func() error {
		var err error
		text, err = os.ReadFile("/proc/thread-self/net/snmp")
		return err
	})
	if err == nil {
		c, err = parseIPCounters(string(text))
	}
	if err != nil {
		return c, fmt.Errorf("read IP counters of network namespace %q: %w", n.Name(), err)
	}
	return c, nil
}

// parseIPCounters parses the two lines that begin with "Ip:": names, then values.
func parseIPCounters(text string) (IPCounters, error) {
	var lines [][]string
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "Ip:"); ok {
			lines = append(lines, strings.Fields(rest))
		}
	}
	if len(lines) != 2 || len(lines[0]) != len(lines[1]) {
		return IPCounters{}, fmt.Errorf("%d lines of IP counters, want 2 of the same length", len(lines))
	}
	var c IPCounters
	for i, name := range lines[0] {
		into := map[string]*uint64{"InDelivers": &c.Delivered, "ForwDatagrams": &c.Forwarded, "OutRequests": &c.Sent}[name]
		if into == nil {
			continue
		}
		value, err := strconv.ParseUint(lines[1][i], 10, 64)
		if err != nil {
			return IPCounters{}, fmt.Errorf("IP counter %s: %w", name, err)
		}
		*into = value
	}
	return c, nil
}
