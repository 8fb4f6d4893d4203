// SPDX-License-Identifier: Apache-2.0

// Package servicebench measures what a table of many services costs beside traffic on open
// connections: the first packet to a service, the time in which all services and the change of
// one are programmed, and the kernel's memory. Each sample ends with connections whose evidence
// shows that the services work.
package servicebench

import (
	"context"
	"math/rand/v2"
	"runtime"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/result"
	"mustang/internal/service"
)

// Connections of a sample.
const (
	// firstPackets are those of which the first packet is measured.
	firstPackets = 1000
	// proofs are those that show that the services work.
	proofs = 20
)

// Changes of a sample: until changeTime is over, but mostChanges at most and two at least,
// there and back.
const (
	changeTime  = time.Second
	mostChanges = 100
)

// memoryBackends is the number of backends of each service whose memory is measured.
const memoryBackends = 4

// Task is one sample to take.
type Task struct {
	// Lab is of topology pod-links, with services.
	Lab *lab.Lab
	// Path is that of the row; its addresses are those of other services then.
	Path evidence.Path
	// Workload is one of those that measure tables of services.
	Workload string
	// CPU is the one that the client's thread runs on.
	CPU int
}

// Sample is the measurement of a task with its evidence.
type Sample struct {
	Measurement load.Measurement
	Evidence    result.Evidence
}

// Run takes a sample. The lab has the services with which it was built then. If evidence
// contradicts the path, the error is an [*evidence.Error].
func (t Task) Run(ctx context.Context) (s Sample, err error) {
	watch, err := clock.OpenMachine()
	if err != nil {
		return s, err
	}
	defer watch.Close()
	c, err := newClient(t)
	if err != nil {
		return s, err
	}
	defer c.Close()
	m := &s.Measurement
	m.Workload, m.Flows, m.Histogram = t.Workload, 1, hdrhistogram.New(1, int64(10*time.Minute), 3)
	if err := c.forget(); err != nil {
		return s, err
	}
	recorder := evidence.Recorder{Lab: t.Lab}
	services := t.Lab.AllServices(lab.OtherBackends)
	runtime.GC() // otherwise what came before is collected while connections are timed
	if err := watch.Begin(); err != nil {
		return s, err
	}
	started := time.Now()
	connections := proofs
	switch t.Workload {
	case result.WorkloadServiceProgram:
		err = t.program(ctx, m)
	case result.WorkloadServiceMemory:
		err = t.memory(ctx, m)
	case result.WorkloadServiceChange:
		err = t.change(ctx, m, c)
	default:
		connections = firstPackets
	}
	if err != nil {
		return s, err
	}
	if err := recorder.Start(); err != nil {
		return s, err
	}
	proof, took, err := c.connectAll(ctx, services, connections)
	if err != nil {
		return s, err
	}
	if connections == firstPackets {
		t.firstPackets(m, took)
	}
	m.Seconds = time.Since(started).Seconds()
	if m.Machine, err = watch.End(); err != nil {
		return s, err
	}
	path := t.Path
	path.Connect, path.Listen = proof.ClientPeer, proof.ServerLocal
	seen, err := recorder.Stop(evidence.Flow{Path: path, Measurement: proof})
	if err != nil {
		return s, err
	}
	s.Evidence = seen[0]
	return s, evidence.Contradiction(s.Evidence)
}

// firstPackets sets the figures of connections that took so long.
func (t Task) firstPackets(m *load.Measurement, took []time.Duration) {
	for _, d := range took {
		_ = m.Histogram.RecordValue(int64(d)) // below the limit of a connection
	}
	percentile := 50.0
	if t.Workload == result.WorkloadFirstPacketP99 {
		percentile = 99
	}
	m.Unit, m.CPUUnit, m.Rate = result.UnitMicroseconds, "transaction", float64(m.Histogram.ValueAtPercentile(percentile))/1e3
	m.Count, m.Units = uint64(len(took)), float64(len(took))
}

// program writes all services into empty tables.
func (t Task) program(ctx context.Context, m *load.Measurement) error {
	services := t.Lab.AllServices(lab.OtherBackends)
	if err := t.Lab.ClearServices(ctx); err != nil {
		return err
	}
	started := time.Now()
	if err := t.Lab.WriteServices(ctx, services); err != nil {
		return err
	}
	m.Count, m.Units = uint64(len(services)), float64(len(services))
	m.Unit, m.CPUUnit, m.Rate = result.UnitServices, "service", m.Units/time.Since(started).Seconds()
	m.Histogram = nil
	return nil
}

// memory writes all services with more backends into empty tables.
func (t Task) memory(ctx context.Context, m *load.Measurement) error {
	services := t.Lab.AllServices(memoryBackends)
	if err := t.Lab.ClearServices(ctx); err != nil {
		return err
	}
	used := kernelMemory
	if d := t.Lab.Datapath(); d != nil { // whose maps keep the memory of deleted rows for new ones
		used = d.Services().Memory
	}
	before, err := used()
	if err != nil {
		return err
	}
	if err := t.Lab.WriteServices(ctx, services); err != nil {
		return err
	}
	after, err := used()
	if err != nil {
		return err
	}
	m.Count, m.Units = uint64(len(services)), float64(len(services))
	m.Unit, m.CPUUnit, m.Rate = result.UnitBytesPerService, "service", max(float64(after)-float64(before), 0)/m.Units
	m.Histogram = nil
	if err := t.Lab.ClearServices(ctx); err != nil {
		return err
	}
	return t.Lab.WriteServices(ctx, t.Lab.AllServices(lab.OtherBackends))
}

// change gives services picked at random another backend, and the old ones back, and measures
// the time until a connection reaches the new one.
func (t Task) change(ctx context.Context, m *load.Measurement, c client) error {
	services := t.Lab.AllServices(lab.OtherBackends)
	started := time.Now()
	for n := 0; n < 2 || n < mostChanges && time.Since(started) < changeTime; n += 2 {
		i := rand.IntN(len(services))
		for !isOther(services[i]) {
			i = rand.IntN(len(services))
		}
		old := services[i].Backends
		for _, backends := range [][]service.Backend{service.Backends(changed()), old} {
			services[i].Backends = backends
			took, err := c.awaitChange(ctx, t.Lab, services, i)
			if err != nil {
				return err
			}
			if err := m.Histogram.RecordValue(int64(took)); err != nil {
				return err
			}
			m.Count++
		}
	}
	m.Units, m.Unit, m.CPUUnit = float64(m.Count), result.UnitMicroseconds, "change"
	m.Rate = float64(m.Histogram.ValueAtPercentile(50)) / 1e3
	return nil
}

// isOther reports whether a service is one of a lab's other services.
func isOther(s service.Service) bool { return len(s.Backends) == lab.OtherBackends }
