// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"
)

// Timeouts are the times after its last packet at which a connection ends. An ended TCP connection keeps its slot
// until another one needs it.
type Timeouts struct {
	SYN         time.Duration // the client has not answered the backend yet; 60 s
	Established time.Duration // open, and of one end closed; 8000 s, more than the two hours of TCP's keepalive
	Closed      time.Duration // closed by both ends, or reset; 10 s. Others may take its place before
	UDP         time.Duration // the backend has not answered; 30 s
	UDPReplied  time.Duration // it has; 120 s
}

func (t *Timeouts) byState() map[tcCtState]*time.Duration {
	return map[tcCtState]*time.Duration{
		tcCtStateCT_SYN: &t.SYN, tcCtStateCT_OPEN: &t.Established, tcCtStateCT_CLOSED: &t.Closed, tcCtStateCT_UDP: &t.UDP,
		tcCtStateCT_UDP_REPLIED: &t.UDPReplied,
	}
}

// claimTimeout is the time after which the claim of a command that was killed ends.
const claimTimeout = 10 * time.Second

func (t Timeouts) config(row tcCtConfig) tcCtConfig {
	row.Timeout[tcCtStateCT_CLAIMED] = uint64(claimTimeout)
	for state, timeout := range t.byState() {
		row.Timeout[state] = uint64(*timeout)
	}
	return row
}

// newConfig returns the limits of a table with a number of slots. Time-outs are the defaults of the kernel's
// nf_conntrack; for established and closed connections, Cilium's. A fifth of the slots is for clients with few
// connections: enough for 200 of them, or 150 so that a search still finds free slots at once.
func newConfig(slots uint32) tcCtConfig {
	timeouts := Timeouts{SYN: 60 * time.Second, Established: 8000 * time.Second, Closed: 10 * time.Second,
		UDP: 30 * time.Second, UDPReplied: 120 * time.Second}
	return timeouts.config(tcCtConfig{Slots: slots, Shared: slots - slots/5, Least: max(slots/1024, 8)})
}

// Timeouts returns the time-outs of connections.
func (o *Objects) Timeouts() (t Timeouts, err error) {
	err = o.NodeState.edit(func(r *tcNodeState) {
		for state, timeout := range t.byState() {
			*timeout = time.Duration(r.CtConfig.Timeout[state])
		}
	})
	return t, err
}

// SetTimeouts changes them, for all connections at once.
func (o *Objects) SetTimeouts(t Timeouts) error {
	return o.NodeState.edit(func(r *tcNodeState) { r.CtConfig = t.config(r.CtConfig) })
}

// Validate returns an error if connections are neither 0 nor between 1024 and 16777216.
func (s Sizes) Validate() error {
	const least, most = 1 << 10, 1 << 24
	if s.Connections != 0 && (s.Connections < least || s.Connections > most) {
		return fmt.Errorf("%d is not between %d and %d, and not 0 (by memory)", s.Connections, least, most)
	}
	return nil
}

// connections returns the number of connections: the configured size, or else a power of two by the machine's memory.
func (s Sizes) connections() uint32 {
	if s.Connections != 0 {
		return s.Connections
	}
	const share, least, most = 128 << 10, 8192, 1 << 20
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return least
	}
	n := uint64(info.Totalram) * uint64(info.Unit) / share
	return uint32(min(max(1<<(bits.Len64(n)-1), least), most))
}
