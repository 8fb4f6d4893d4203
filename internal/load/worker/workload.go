// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"fmt"
	"slices"
	"time"

	"mustang/internal/load"
)

// workload is one kind of traffic, in a file of its own.
type workload struct {
	name    string // in a spec
	code    byte   // in a connection's header, unique and never reused
	network string // "tcp" or "udp"
	// open is the client's part of one flow, after the handshake.
	open func(*connection, *session) (flow, error)
	// serve is the server's part of one flow, until the client ends it. It returns the
	// report for the client.
	serve func(*session) (load.Served, error)
}

// workloads returns all workloads in the order of [load.Workloads].
func workloads() []workload {
	return []workload{
		{load.TCPStream, 's', "tcp", openBlocks, serveBlocks},
		{load.TCPRR, 'r', "tcp", openRequester, serveRequests},
		{load.TCPCRR, 'c', "tcp", openConnector, serveSlot},
		{load.UDPStream, 'u', "udp", openDatagrams, serveDatagrams},
		{load.UDPRR, 'q', "udp", openDatagramRequester, serveDatagrams},
	}
}

// lookup finds a workload by its name in a spec.
func lookup(name string) (workload, error) {
	all := workloads()
	if i := slices.IndexFunc(all, func(w workload) bool { return w.name == name }); i >= 0 {
		return all[i], nil
	}
	return workload{}, fmt.Errorf("load: unknown workload %q", name)
}

// lookupCode finds a workload by its code in a header.
func lookupCode(code byte) (workload, error) {
	all := workloads()
	if i := slices.IndexFunc(all, func(w workload) bool { return w.code == code }); i >= 0 {
		return all[i], nil
	}
	return workload{}, fmt.Errorf("load: unknown workload code %#x", code)
}

// flow is the client's part of one flow of a connection.
type flow interface {
	// carry carries load for a burst, and returns when nothing of it is in flight.
	carry(burst) (load.SliceResult, error)
	// idle tells the server that a slice is over.
	idle() error
	// end ends the flow and returns the server's report of all that was counted.
	end() (load.Served, error)
}

// burst is a stretch of load on all flows of a connection: a slice's lead, or the rest of
// it.
type burst struct {
	start   time.Time
	length  time.Duration
	limit   uint64 // datagrams or transactions, in place of the length; 0: none
	counted bool
}

// over reports whether a burst of so many datagrams or transactions has ended.
func (b burst) over(count uint64, elapsed time.Duration) bool {
	if b.limit > 0 {
		return count >= b.limit
	}
	return elapsed >= b.length
}
