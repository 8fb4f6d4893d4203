// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bufio"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/netns"
	"mustang/internal/policy"
	"mustang/internal/rtnl"
)

// policiesOf returns the handle of the network policies, which know the node by the addresses of the host.
func policiesOf(o *objects.Objects) policies.Policies {
	return policies.Policies{Objects: o, Listening: listening, Node: func() (all []netip.Addr, err error) {
		host, err := hostCookie(o)
		if err != nil || host == 0 {
			return nil, err
		}
		err = onHost(host, func(ns *netns.Namespace) error {
			all, err = rtnl.In(ns).Every()
			return err
		})
		return all, err
	}}
}

// listening calls each with the TCP ports that something in a network namespace listens on.
func listening(each func(cookie uint64, ports func() []uint16) error) error {
	return eachNamespace(func(ns *netns.Namespace, cookie uint64) error {
		return each(cookie, func() (ports []uint16) {
			_ = ns.Do(func() error { // one that ends has no ports
				for _, name := range []string{"tcp", "tcp6"} {
					ports = append(ports, readListening("/proc/thread-self/net/"+name)...)
				}
				return nil
			})
			slices.Sort(ports)
			return slices.Compact(ports)
		})
	})
}

// readListening returns the ports of the sockets that listen. In the kernel's list they come first.
func readListening(path string) (ports []uint16) {
	const stateListen = "0A"
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[0] == "sl" {
			continue
		}
		_, port, _ := strings.Cut(fields[1], ":")
		n, err := strconv.ParseUint(port, 16, 16)
		if err != nil || fields[3] != stateListen {
			break
		}
		ports = append(ports, uint16(n))
	}
	return ports
}

// writeAdmitted writes the rows of an endpoint with the rule sets that its policies give it.
func (e Endpoints) writeAdmitted(rows []Endpoint, pod *policy.Pod, write func([]Endpoint) error) error {
	addresses := make([]netip.Addr, len(rows))
	for i, row := range rows {
		addresses[i] = row.IP
	}
	return policiesOf(e.o).Admit(rows[0].ID, addresses, pod, func(sets map[netip.Addr]policy.Sets) error {
		for i := range rows {
			rows[i].sets = sets[netip.AddrFrom16(rows[i].IP.As16())]
		}
		return write(rows)
	})
}
