// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"strings"
)

// workload is one kind of traffic: what a client does and what its server
// does. Each is a file of its own; [workloads] lists them.
type workload interface {
	// name is the workload's name in a spec, unique.
	name() string
	// code announces it in a connection's header, unique and never reused.
	code() byte
	// network is what it runs over: "tcp" or "udp".
	network() string
	// drive is the client's side of all connections of a run, up to and including
	// the server's reports.
	drive(*flows) (Measurement, error)
	// serve is the server's side of one connection, up to the client's end of the connection; it
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
	return nil, fmt.Errorf("traffic: unknown workload %q, there are %s", name, strings.Join(Workloads(), ", "))
}

// lookupCode finds a workload by its code in a header.
func lookupCode(code byte) (workload, error) {
	for _, w := range workloads() {
		if w.code() == code {
			return w, nil
		}
	}
	return nil, fmt.Errorf("traffic: unknown workload code %#x", code)
}
