// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"strings"
)

// workload is one kind of traffic: the client's part and the server's. Each is a type
// with a file of its own, listed in [workloads].
type workload interface {
	// name is the workload's name in a spec. It is unique.
	name() string
	// code announces the workload in a connection's header. It is unique and never
	// reused.
	code() byte
	// network is "tcp" or "udp".
	network() string
	// drive is the client's part of a run, up to and including the server's reports.
	drive(*clientRun) (Measurement, error)
	// serve is the server's part of one connection, until the client closes it. It
	// sends the report.
	serve(*session) error
}

// workloads returns all workloads in a fixed order.
func workloads() []workload {
	return []workload{tcpStream{}, tcpRR{}, udpStream{}}
}

// Workloads returns the names of all workloads in a fixed order.
func Workloads() []string {
	var names []string
	for _, w := range workloads() {
		names = append(names, w.name())
	}
	return names
}

// lookup finds a workload by name.
func lookup(name string) (workload, error) {
	for _, w := range workloads() {
		if w.name() == name {
			return w, nil
		}
	}
	return nil, fmt.Errorf("load: unknown workload %q: want one of %s", name, strings.Join(Workloads(), ", "))
}

// lookupCode finds a workload by its code in a header.
func lookupCode(code byte) (workload, error) {
	for _, w := range workloads() {
		if w.code() == code {
			return w, nil
		}
	}
	return nil, fmt.Errorf("load: unknown workload code %#x", code)
}
