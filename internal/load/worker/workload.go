// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"fmt"
	"strings"

	"mustang/internal/load"
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
	drive(*clientRun) (load.Measurement, error)
	// stand is the client's part of one flow of a standing connection. The server has
	// been greeted.
	stand(*standingConn, *session) (flow, error)
	// serve is the server's part of one connection, until the client closes it. It
	// sends the report.
	serve(*session) error
}

// workloads returns all workloads in a fixed order.
func workloads() []workload {
	return []workload{tcpStream{}, tcpRR{}, tcpCRR{}, udpStream{}, udpRR{}}
}

// lookup finds a workload by name.
func lookup(name string) (workload, error) {
	for _, w := range workloads() {
		if w.name() == name {
			return w, nil
		}
	}
	return nil, fmt.Errorf("load: unknown workload %q: want one of %s", name, strings.Join(load.Workloads(), ", "))
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
