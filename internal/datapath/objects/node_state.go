// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const bloomLog = 20 // BLOOM_LOG of bpf/mustang/maps.h

// NodeState is the shared state of all programs of a node: a bloom filter of frontends, generations of caches, limits
// of connections, the last allocated IDs. Programs and other processes write it at the same time.
type NodeState struct{ Map *ebpf.Map }

// AddFrontends sets the bits of frontends in the bloom filter. Call it before the programs must find their services:
// if the bits of a packet are clear, programs look up neither service nor connection. A frontend of protocol 0 sets
// the bits of TCP and UDP. Bits are never cleared.
func (s *NodeState) AddFrontends(keys []ServiceKey) error {
	if len(keys) == 0 {
		return nil
	}
	return s.edit(func(row *tcNodeState) {
		for _, key := range keys {
			protocols := []uint8{key.Proto}
			if key.Proto == 0 {
				protocols = []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP}
			}
			for _, key.Proto = range protocols {
				bit := s.Bit(key)
				atomic.OrUint64(&row.Bloom[bit/64], 1<<(bit%64))
			}
		}
	})
}

// Invalidate voids the programs' copies of services, endpoints and connections, after a change. Programs check each
// connection again before they use it.
func (s *NodeState) Invalidate() error {
	return s.edit(func(row *tcNodeState) {
		atomic.AddUint64(&row.Rows, 1)
		for i := range row.Generations {
			atomic.AddUint64(&row.Generations[i], 1)
		}
	})
}

// init sets what programs need from the start: the secret of seals, and the limits of a table of connections.
func (s *NodeState) init(slots uint32) error {
	return s.edit(func(row *tcNodeState) {
		for i := range row.Secret {
			var random [8]byte
			_, _ = rand.Read(random[:]) // never fails
			row.Secret[i] = binary.NativeEndian.Uint64(random[:])
		}
		row.CtConfig = newConfig(slots)
	})
}

// PoliciesInForce returns 1 + the row of the policies' settings that programs use; 0: no pod has a rule set.
func (s *NodeState) PoliciesInForce() (row uint64, err error) {
	err = s.edit(func(r *tcNodeState) { row = atomic.LoadUint64(&r.Policies) })
	return row, err
}

// EnforcePolicies sets the result of PoliciesInForce. Invalidate must follow.
func (s *NodeState) EnforcePolicies(row uint64) error {
	return s.edit(func(r *tcNodeState) { atomic.StoreUint64(&r.Policies, row) })
}

// SetRemotes sets the number of rows of remotes, and the VXLAN network id and port of the tunnel between nodes. It
// reports whether one of them changed.
func (s *NodeState) SetRemotes(number int, vni uint32, port uint16) (changed bool, err error) {
	err = s.edit(func(r *tcNodeState) {
		was := [...]uint32{r.Remotes, r.TunnelVni, uint32(r.TunnelPort)}
		r.TunnelVni, r.TunnelPort = bits.ReverseBytes32(vni<<8), bits.ReverseBytes16(port)
		atomic.StoreUint32(&r.Remotes, uint32(number))
		changed = was != [...]uint32{r.Remotes, r.TunnelVni, uint32(r.TunnelPort)}
	})
	return changed, err
}

// Tunnel returns the VXLAN network id and port of the tunnel between nodes.
func (s *NodeState) Tunnel() (vni uint32, port uint16, err error) {
	err = s.edit(func(r *tcNodeState) {
		vni, port = bits.ReverseBytes32(r.TunnelVni)>>8, bits.ReverseBytes16(r.TunnelPort)
	})
	return vni, port, err
}

// watch makes programs emit events of some kinds, by their bits, until then.
func (s *NodeState) watch(until, kinds uint64) error {
	return s.edit(func(r *tcNodeState) {
		atomic.StoreUint64(&r.WatchedKinds, kinds)
		atomic.StoreUint64(&r.Watched, until)
	})
}

// IDs returns the last IDs given out.
func (s *NodeState) IDs() (ids IDs, err error) {
	err = s.edit(func(r *tcNodeState) { ids = r.IdAlloc })
	return ids, err
}

// PutIDs stores the last IDs given out. The caller has the lock of the rows. A process that is killed meanwhile has
// stored the first of them: numbers that are not used are skipped.
func (s *NodeState) PutIDs(ids IDs) error {
	return s.edit(func(r *tcNodeState) {
		atomic.StoreUint32(&r.IdAlloc.LastService, ids.LastService)
		atomic.StoreUint32(&r.IdAlloc.LastRevision, ids.LastRevision)
		atomic.StoreUint32(&r.IdAlloc.LastEndpoint, ids.LastEndpoint)
		atomic.StoreUint32(&r.IdAlloc.Retiring, ids.Retiring)
		atomic.StoreUint64(&r.IdAlloc.Host, ids.Host)
	})
}

func (s *NodeState) edit(fn func(*tcNodeState)) error {
	return s.mapped(unsafe.Offsetof(tcNodeState{}.ClientConns), fn)
}

// ClientConns calls fn with the numbers of connections, by client.
func (s *NodeState) ClientConns(fn func([]uint64)) error {
	return s.mapped(unsafe.Sizeof(tcNodeState{}), func(row *tcNodeState) { fn(row.ClientConns[:]) })
}

func (s *NodeState) mapped(size uintptr, fn func(*tcNodeState)) error {
	memory, err := unix.Mmap(s.Map.FD(), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %q into memory: %w", tcMapNodeState, err)
	}
	fn((*tcNodeState)(unsafe.Pointer(&memory[0])))
	return unix.Munmap(memory)
}

// Bit returns the bit of a frontend in the bloom filter, as bloom_bit of bpf/mustang/bloom.h does.
func (*NodeState) Bit(key ServiceKey) uint64 {
	return frontendHash(key, uint64(key.Port)<<8|uint64(key.Proto)) >> (64 - bloomLog)
}

// Tag returns the tag of a service's row, as service_tag of bpf/mustang/maps.h does.
func (*NodeState) Tag(key ServiceKey) uint32 {
	return uint32(frontendHash(key, uint64(key.Port)) >> 32)
}

func frontendHash(key ServiceKey, port uint64) uint64 {
	const multiplier = 0x9e3779b97f4a7c15
	half := func(i int) uint64 { return binary.LittleEndian.Uint64(key.Addr.Bytes[8*i:]) }
	return (half(0)*multiplier ^ half(1) ^ port) * multiplier
}

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

const claimTimeout = 10 * time.Second // the time after which the claim of a command that was killed ends

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
