// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ChecksumErrors counts what a namespace received with a wrong checksum, since
// it was made.
type ChecksumErrors struct{ TCP, UDP uint64 }

// ChecksumErrors reads n's counters, of both families: TCP's are one.
func (n *Namespace) ChecksumErrors() (out ChecksumErrors, err error) {
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

// snmpValue finds a counter in pairs of lines: the first has the names of the
// counters in the second.
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

// snmp6Value finds a counter in lines of a name and a value.
func snmp6Value(data []byte, counter string) (uint64, error) {
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) == 2 && fields[0] == counter {
			return strconv.ParseUint(fields[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("no counter %s", counter)
}
