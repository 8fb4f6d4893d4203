// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"

	"mustang/internal/lab"
	"mustang/internal/nl"
	"mustang/internal/result"
)

// device names a device of a lab.
type device struct{ place, name string }

// counts is what a lab's devices and programs have counted so far.
type counts struct {
	devices  map[device]result.DeviceCount
	order    []device
	programs map[string]uint64
	ip       map[string]nl.IPCounts // by place
}

// add takes the counters of a place's devices.
func (c *counts) add(place string, ns *nl.Namespace) error {
	devices, err := ns.Devices()
	for _, d := range devices {
		key := device{place, d.Name}
		c.order = append(c.order, key)
		c.devices[key] = result.DeviceCount{Host: place, Name: d.Name, RxPackets: d.RxPackets, TxPackets: d.TxPackets}
	}
	return err
}

// takeCounts reads the counters of a lab; nil has none.
func takeCounts(l *lab.Lab) (counts, error) {
	c := counts{devices: map[device]result.DeviceCount{}, programs: map[string]uint64{}, ip: map[string]nl.IPCounts{}}
	if l == nil {
		return c, nil
	}
	for _, place := range l.Places() {
		ns, err := l.Namespace(place)
		if err != nil {
			return c, err
		}
		if err := c.add(place, ns); err != nil {
			return c, err
		}
		if c.ip[place], err = ns.IPCounts(); err != nil {
			return c, err
		}
	}
	if dp := l.Datapath(); dp != nil {
		counters, err := dp.Counters()
		if err != nil {
			return c, err
		}
		for _, counter := range counters {
			c.programs[counter.Name] = counter.Packets
		}
	}
	return c, nil
}

// since returns the increase from an earlier reading, as evidence. What stood
// still is left out.
func (c counts) since(earlier counts) result.Evidence {
	e := result.Evidence{ProgramRuns: map[string]uint64{}}
	for _, key := range c.order {
		now, before := c.devices[key], earlier.devices[key]
		now.RxPackets -= before.RxPackets
		now.TxPackets -= before.TxPackets
		if now.RxPackets+now.TxPackets > 0 {
			e.Devices = append(e.Devices, now)
		}
	}
	for name, runs := range c.programs {
		if runs > earlier.programs[name] {
			e.ProgramRuns[name] = runs - earlier.programs[name]
		}
	}
	return e
}

// merge adds the evidence of a further sample.
func merge(sum *result.Evidence, e result.Evidence) {
	for _, d := range e.Devices {
		found := false
		for i := range sum.Devices {
			if s := &sum.Devices[i]; s.Host == d.Host && s.Name == d.Name {
				s.RxPackets += d.RxPackets
				s.TxPackets += d.TxPackets
				found = true
			}
		}
		if !found {
			sum.Devices = append(sum.Devices, d)
		}
	}
	if sum.ProgramRuns == nil {
		sum.ProgramRuns = map[string]uint64{}
	}
	for name, runs := range e.ProgramRuns {
		sum.ProgramRuns[name] += runs
	}
	sum.Connections += e.Connections
	sum.Client, sum.Server = e.Client, e.Server
	sum.Hooks = e.Hooks
	mergeAttachments(sum, e.Attachments)
	sum.Findings = append(sum.Findings, e.Findings...)
}

// seen returns what a device counted, nothing if it stood still.
func seen(e result.Evidence, place, name string) result.DeviceCount {
	for _, d := range e.Devices {
		if d.Host == place && d.Name == name {
			return d
		}
	}
	return result.DeviceCount{Host: place, Name: name}
}

// describe names a device count in a finding.
func describe(d result.DeviceCount) string {
	return fmt.Sprintf("%s in %s (%d received, %d sent)", d.Name, d.Host, d.RxPackets, d.TxPackets)
}
