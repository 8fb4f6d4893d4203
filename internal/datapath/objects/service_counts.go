// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// CountsRow returns the row of the service's counts: counts_of() of bpf/mustang/maps.h. Services whose ids differ by
// CountedServices have the same one.
func (s *Service) CountsRow() uint32 { return 1 + (s.Id-1)%CountedServices }

// Traffic is a number of packets, as the kernel carries them, and the bytes of their frames.
type Traffic struct{ Packets, Bytes uint64 }

// CountsOf returns the translated traffic of the services of a row: to backends, and back.
func (o *Objects) CountsOf(row uint32) (to, back Traffic, err error) {
	cpus, _, err := o.serviceCounts.Get(row)
	for _, cpu := range cpus {
		to = Traffic{to.Packets + cpu.Packets[0], to.Bytes + cpu.Bytes[0]}
		back = Traffic{back.Packets + cpu.Packets[1], back.Bytes + cpu.Bytes[1]}
	}
	return to, back, err
}

// ClearCounts sets rows to zero.
func (o *Objects) ClearCounts(rows []uint32) error {
	zero := make([]tcServiceCounts, ebpf.MustPossibleCPU())
	for _, row := range rows {
		if err := o.serviceCounts.Map.Put(row, zero); err != nil {
			return fmt.Errorf("write map %q: %w", tcMapServiceCounts, err)
		}
	}
	return nil
}
