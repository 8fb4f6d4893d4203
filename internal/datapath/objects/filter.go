// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// filterLog is FILTER_LOG of bpf/mustang/maps.h.
const filterLog = 20

// Filter has a bit for each hash of address, port and protocol. Programs look up neither service nor connection where the
// bits of a packet are clear.
type Filter struct{ Map *ebpf.Map }

// Add sets the bits of frontends, which must be done before the programs are to find their services. A frontend of protocol 0
// has those of TCP and UDP. Programs and other processes set bits at the same time, and nobody clears one.
func (f *Filter) Add(keys []ServiceKey) error {
	if len(keys) == 0 {
		return nil
	}
	return f.edit(func(row *tcFilter) {
		for _, key := range keys {
			protocols := []uint8{key.Proto}
			if key.Proto == 0 {
				protocols = []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP}
			}
			for _, key.Proto = range protocols {
				bit := filterBit(key)
				atomic.OrUint64(&row.Words[bit/64], 1<<(bit%64))
			}
		}
	})
}

// Change tells programs that services, endpoints or connections have changed: it voids their copies, and they check each
// connection anew before they use it.
func (f *Filter) Change() error {
	return f.edit(func(row *tcFilter) {
		atomic.AddUint64(&row.Rows, 1)
		for i := range row.Generations {
			atomic.AddUint64(&row.Generations[i], 1)
		}
	})
}

// keepSecret chooses the secret of seals, unless there is one.
func (f *Filter) keepSecret() error {
	return f.edit(func(row *tcFilter) {
		for i := range row.Secret {
			var random [8]byte
			_, _ = rand.Read(random[:]) // never fails
			atomic.CompareAndSwapUint64(&row.Secret[i], 0, binary.NativeEndian.Uint64(random[:]))
		}
	})
}

// edit calls fn with the row, which programs and other processes write as well.
func (f *Filter) edit(fn func(*tcFilter)) error {
	memory, err := unix.Mmap(f.Map.FD(), 0, int(unsafe.Sizeof(tcFilter{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %q into memory: %w", tcMapFilter, err)
	}
	fn((*tcFilter)(unsafe.Pointer(&memory[0])))
	return unix.Munmap(memory)
}

// Bit returns the bit of a frontend.
func (*Filter) Bit(key ServiceKey) uint64 { return filterBit(key) }

// filterBit returns the bit of a frontend, as filter_bit of bpf/mustang/filter.h does.
func filterBit(key ServiceKey) uint64 {
	return frontendHash(key, uint64(key.Port)<<8|uint64(key.Proto)) >> (64 - filterLog)
}

// Tag returns the tag of a service's row, as service_tag of bpf/mustang/maps.h does.
func (*Filter) Tag(key ServiceKey) uint32 { return uint32(frontendHash(key, uint64(key.Port)) >> 32) }

func frontendHash(key ServiceKey, port uint64) uint64 {
	const multiplier = 0x9e3779b97f4a7c15
	half := func(i int) uint64 { return binary.LittleEndian.Uint64(key.Addr.Bytes[8*i:]) }
	return (half(0)*multiplier ^ half(1) ^ port) * multiplier
}
