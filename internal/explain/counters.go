// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// Counters are the kernel's own counters for a transaction, in a run without tracing: the mean of all transactions.
type Counters struct {
	// Devices are the devices with packets, by place and name.
	Devices []DeviceCounter `json:"devices"`
	// Programs are the BPF programs at devices.
	Programs []ProgramCounter `json:"programs,omitempty"`
	// Softirqs is the number of network softirqs of the machine.
	Softirqs float64 `json:"softirqs"`
}

// DeviceCounter has the packets of a device in a transaction.
type DeviceCounter struct {
	Place       string  `json:"place"`
	Device      string  `json:"device"`
	Transmitted float64 `json:"transmitted"`
	Received    float64 `json:"received"`
}

// ProgramCounter has the runs of a BPF program in a transaction, at all its devices.
type ProgramCounter struct {
	Name string  `json:"name"`
	Runs float64 `json:"runs"`
	// Mean is the time of one run, as the kernel's statistics have it.
	Mean float64 `json:"mean"`
}

type reading struct {
	devices  map[device][2]uint64 // transmitted, received
	programs map[ebpf.ProgramID]ebpf.ProgramStats
}

// count does the transactions and returns the counters of one.
func (r *run) count(ctx context.Context) (c Counters, err error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return c, fmt.Errorf("count the runs of BPF programs: %w", err)
	}
	defer func() { err = errors.Join(err, stats.Close()) }()
	before, err := r.read()
	if err != nil {
		return c, err
	}
	m, err := r.transact(ctx, r.options.Count)
	if err != nil {
		return c, err
	}
	after, err := r.read()
	if err != nil {
		return c, err
	}
	n := float64(r.options.Count + settle)
	for d, now := range after.devices {
		if was := before.devices[d]; now != was {
			c.Devices = append(c.Devices, DeviceCounter{
				r.places[d.place-1], r.devices[d], float64(now[0]-was[0]) / n, float64(now[1]-was[1]) / n,
			})
		}
	}
	slices.SortFunc(c.Devices, func(a, b DeviceCounter) int {
		return cmp.Or(cmp.Compare(a.Place, b.Place), cmp.Compare(a.Device, b.Device))
	})
	for _, a := range r.attached {
		now, was := after.programs[a.id], before.programs[a.id]
		delete(after.programs, a.id) // other devices may have it too
		if runs := float64(now.RunCount - was.RunCount); now.RunCount > was.RunCount {
			c.Programs = append(c.Programs, ProgramCounter{a.name, runs / n, float64(now.Runtime-was.Runtime) / runs})
		}
	}
	slices.SortFunc(c.Programs, func(a, b ProgramCounter) int { return cmp.Compare(a.Name, b.Name) })
	c.Softirqs = float64(m.Machine.NetRX+m.Machine.NetTX) / float64(r.options.Count)
	return c, nil
}

// read reads the counters of all devices and programs, and sets the names of devices.
func (r *run) read() (reading, error) {
	out := reading{map[device][2]uint64{}, map[ebpf.ProgramID]ebpf.ProgramStats{}}
	err := r.eachPlace(func(i int, ns *netns.Namespace) error {
		devices, err := rtnl.In(ns).Devices()
		for _, d := range devices {
			key := device{uint8(i + 1), uint32(d.Index)}
			r.devices[key], out.devices[key] = d.Name, [2]uint64{d.TxPackets, d.RxPackets}
		}
		return err
	})
	for _, a := range r.attached {
		stats, statsErr := a.program.Stats()
		if statsErr != nil {
			return out, statsErr
		}
		out.programs[a.id] = *stats
	}
	return out, err
}
