// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"time"

	"mustang/internal/load"
	"mustang/internal/result"
)

// Cluster is a Kubernetes cluster whose pods are the places of clients and servers, in place of labs.
type Cluster interface {
	// Agent returns how to start an agent in a pod.
	Agent(pod string) load.AgentOptions
	// Describe replaces what the head of a result file says of this machine by what there is to say of the nodes.
	Describe(head *result.Run)
}

// clusterSlice is the length of turns in a cluster. Most rounds change between the agents of several pods, which takes
// milliseconds: the way of a message through the API server.
const clusterSlice = 20 * time.Millisecond

// clusterLead is the part of a stream's turn that comes before it and is not counted. In pods, TCP begins slowly after each
// pause (net.ipv4.tcp_slow_start_after_idle).
const clusterLead = 4

// masqueraded is the remark on a row whose server sees another client.
const masqueraded = "the server sees another address than the client's: it is masqueraded"

// remark adds what the proof of a path in a cluster shows.
func (r *measuredRow) remark(m load.Measurement) {
	if r.spec.path.Ends != nil && m.ServerPeer.Addr() != m.ClientLocal.Addr() {
		r.addNote(masqueraded)
	}
}
