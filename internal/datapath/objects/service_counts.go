// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
)

// CountsRow returns the row of the service's counts: counts_of() of bpf/mustang/maps.h. Services whose ids differ by CountedServices have
// the same one.
func (s *Service) CountsRow() uint32 { return 1 + (s.Id-1)%CountedServices }

// ServiceCounts are what programs translated for services.
type ServiceCounts struct {
	m    *ebpf.Map
	cpus []tcServiceCounts
}

// Traffic is a number of packets, and the bytes of their frames. What the kernel carries as one packet is one.
type Traffic struct{ Packets, Bytes uint64 }

// OpenServiceCounts opens the counts; they are nil as long as no program has been loaded that counts. Close them.
func (o *Objects) OpenServiceCounts() (*ServiceCounts, error) {
	m, err := ebpf.LoadPinnedMap(o.layout.mapPin(tcMapServiceCounts), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open map %q: %w", tcMapServiceCounts, err)
	}
	return &ServiceCounts{m, nil}, nil
}

// Close closes the counts; nil is fine.
func (c *ServiceCounts) Close() error {
	if c == nil {
		return nil
	}
	return c.m.Close()
}

// Of returns what was translated of a row: to backends, and back.
func (c *ServiceCounts) Of(row uint32) (to, back Traffic, err error) {
	if err := c.m.Lookup(&row, &c.cpus); err != nil {
		return to, back, fmt.Errorf("read map %q: %w", tcMapServiceCounts, err)
	}
	for _, cpu := range c.cpus {
		to = Traffic{to.Packets + cpu.Packets[0], to.Bytes + cpu.Bytes[0]}
		back = Traffic{back.Packets + cpu.Packets[1], back.Bytes + cpu.Bytes[1]}
	}
	return to, back, nil
}

// Clear sets rows to zero.
func (c *ServiceCounts) Clear(rows []uint32) error {
	zero := make([]tcServiceCounts, ebpf.MustPossibleCPU())
	for _, row := range rows {
		if err := c.m.Put(&row, zero); err != nil {
			return fmt.Errorf("write map %q: %w", tcMapServiceCounts, err)
		}
	}
	return nil
}
