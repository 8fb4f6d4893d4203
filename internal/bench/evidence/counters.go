// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"fmt"
	"slices"

	"mustang/internal/lab"
	"mustang/internal/netns"
	"mustang/internal/netstat"
	"mustang/internal/result"
	"mustang/internal/rtnl"
)

type counters struct {
	devices  map[Device]device
	order    []Device // as the kernel lists them
	programs map[string]uint64
	rules    map[string]uint64                // of a network policy
	ip       map[string][2]netstat.IPCounters // by place: IPv4, IPv6
}

type device struct {
	result.DeviceCount
	index int
}

func readCounters(l *lab.Lab) (c counters, err error) {
	c = counters{devices: map[Device]device{}, programs: map[string]uint64{}, ip: map[string][2]netstat.IPCounters{}}
	if l == nil {
		return c, nil
	}
	for _, place := range l.Places() {
		ns, err := l.Namespace(place)
		if err != nil {
			return c, err
		}
		if err := c.readDevices(place, ns); err != nil {
			return c, err
		}
		v4, v6, err := netstat.ReadIPCounters(ns)
		if err != nil {
			return c, err
		}
		c.ip[place] = [2]netstat.IPCounters{v4, v6}
	}
	if c.rules, err = l.RuleCounters(); err != nil || l.Datapath() == nil {
		return c, err
	}
	programs, err := l.Datapath().Flows().Counters()
	for _, counter := range programs {
		c.programs[counter.Name] = counter.Packets
	}
	return c, err
}

func (c *counters) readDevices(place string, ns *netns.Namespace) error {
	devices, err := rtnl.In(ns).Devices()
	for _, d := range devices {
		key := Device{Place: place, Name: d.Name}
		c.order = append(c.order, key)
		c.devices[key] = device{result.DeviceCount{Host: place, Name: d.Name, RxPackets: d.RxPackets,
			TxPackets: d.TxPackets}, d.Index}
	}
	return err
}

// since returns the increase since an earlier reading, without unchanged counters. It detects replaced devices,
// whose counters began anew.
func (c counters) since(earlier counters) result.Evidence {
	e := result.Evidence{ProgramRuns: map[string]uint64{}}
	for _, key := range c.order {
		d := c.devices[key]
		before, ok := earlier.devices[key]
		if ok && (d.index != before.index || d.RxPackets < before.RxPackets || d.TxPackets < before.TxPackets) {
			e.Findings = append(e.Findings, fmt.Sprintf("%s in %s was replaced meanwhile", d.Name, d.Host))
			continue
		}
		d.RxPackets -= before.RxPackets
		d.TxPackets -= before.TxPackets
		if d.RxPackets+d.TxPackets > 0 {
			e.Devices = append(e.Devices, d.DeviceCount)
		}
	}
	add(&e.ProgramRuns, c.programs, earlier.programs)
	add(&e.Rules, c.rules, earlier.rules)
	return e
}

func add(to *map[string]uint64, now, earlier map[string]uint64) {
	for name, n := range now {
		if n <= earlier[name] {
			continue
		}
		if *to == nil {
			*to = map[string]uint64{}
		}
		(*to)[name] += n - earlier[name]
	}
}

// Merge adds the evidence of a further sample to sum. Addresses and hooks of that sample replace the earlier ones.
func Merge(sum *result.Evidence, e result.Evidence) {
	for _, d := range e.Devices {
		if s := find(sum.Devices, Device{Place: d.Host, Name: d.Name}); s != nil {
			s.RxPackets += d.RxPackets
			s.TxPackets += d.TxPackets
			continue
		}
		sum.Devices = append(sum.Devices, d)
	}
	add(&sum.ProgramRuns, e.ProgramRuns, nil)
	add(&sum.Rules, e.Rules, nil)
	sum.Connections += e.Connections
	sum.Client, sum.Server = e.Client, e.Server
	sum.Hooks = e.Hooks
	sum.Findings = append(sum.Findings, e.Findings...)
	if e.Attachments == nil {
		return
	}
	total := *e.Attachments
	if sum.Attachments != nil {
		total.Added += sum.Attachments.Added
		total.Removed += sum.Attachments.Removed
	}
	sum.Attachments = &total
}

func find(counts []result.DeviceCount, d Device) *result.DeviceCount {
	i := slices.IndexFunc(counts, func(c result.DeviceCount) bool { return c.Host == d.Place && c.Name == d.Name })
	if i < 0 {
		return nil
	}
	return &counts[i]
}
