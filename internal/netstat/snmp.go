// SPDX-License-Identifier: Apache-2.0

package netstat

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"mustang/internal/netns"
)

// snmp6Value finds a counter in /proc/net/snmp6: a name and a value per line.
func snmp6Value(data []byte, counter string) (uint64, error) {
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) == 2 && fields[0] == counter {
			return strconv.ParseUint(fields[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("no counter %s", counter)
}

// IPCounters are packet counters of a namespace's IP layer. A GSO packet counts as one.
type IPCounters struct {
	// Delivered were for the namespace itself, Forwarded passed through it, and Sent
	// came from it.
	Delivered, Forwarded, Sent uint64
}

// ReadIPCounters reads ipInDelivers, ipForwDatagrams and ipOutRequests (RFC 4293) of IPv4,
// and the same of IPv6, which are 0 without IPv6.
func ReadIPCounters(n *netns.Namespace) (v4, v6 IPCounters, err error) {
	err = n.Do(func() error {
		snmp, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		if err := parseSNMP(string(snmp), "Ip:", map[string]*uint64{
			"InDelivers": &v4.Delivered, "ForwDatagrams": &v4.Forwarded, "OutRequests": &v4.Sent,
		}); err != nil {
			return err
		}
		snmp6, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a kernel without IPv6
		}
		for name, into := range map[string]*uint64{
			"Ip6InDelivers": &v6.Delivered, "Ip6OutForwDatagrams": &v6.Forwarded, "Ip6OutRequests": &v6.Sent,
		} {
			if err == nil {
				*into, err = snmp6Value(snmp6, name)
			}
		}
		return err
	})
	if err != nil {
		return IPCounters{}, IPCounters{}, fmt.Errorf("read IP counters of network namespace %q: %w", n.Name(), err)
	}
	return v4, v6, nil
}

// parseSNMP reads counters of a protocol in /proc/net/snmp, by name: two lines begin with the protocol, names and then
// values.
func parseSNMP(text, protocol string, counters map[string]*uint64) error {
	var lines [][]string
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, protocol); ok {
			lines = append(lines, strings.Fields(rest))
		}
	}
	if len(lines) != 2 || len(lines[0]) != len(lines[1]) {
		return fmt.Errorf("%d lines of counters %s want 2 of the same length", len(lines), protocol)
	}
	for name, into := range counters {
		i := slices.Index(lines[0], name)
		if i < 0 {
			return fmt.Errorf("no counter %s %s", protocol, name)
		}
		var err error
		if *into, err = strconv.ParseUint(lines[1][i], 10, 64); err != nil {
			return fmt.Errorf("counter %s %s: %w", protocol, name, err)
		}
	}
	return nil
}
