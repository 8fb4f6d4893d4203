// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
	"mustang/internal/service"
)

// firstPackets is the number of connections of a sample of first packets.
const firstPackets = 1000

// serviceTime is how long services change, see [mostChanges].
const serviceTime = time.Second

// memoryBackends is the number of backends of each service whose memory is measured.
const memoryBackends = 4

// services takes a sample of a table of services.
func (t Task) services(ctx context.Context, m *load.Measurement, s *span) (result.Evidence, error) {
	c, err := newClient(t)
	if err != nil {
		return result.Evidence{}, err
	}
	defer c.close()
	recorder, all := evidence.Recorder{Lab: t.Lab}, t.Lab.AllServices(lab.OtherBackends)
	if err := errors.Join(c.forget(), s.begin()); err != nil {
		return result.Evidence{}, err
	}
	connections := proofs
	switch t.Workload {
	case result.WorkloadServiceProgram:
		err = t.program(ctx, m)
	case result.WorkloadServiceMemory:
		err = t.memory(ctx, m)
	case result.WorkloadServiceChange:
		err = t.changeServices(ctx, m, c)
	default:
		connections = firstPackets
	}
	if err != nil {
		return result.Evidence{}, err
	}
	if err := recorder.Start(); err != nil {
		return result.Evidence{}, err
	}
	proof, took, err := c.connectAll(ctx, all, connections)
	if err != nil {
		return result.Evidence{}, err
	}
	if connections == firstPackets {
		t.firstPackets(m, took)
	}
	if err := s.end(m); err != nil {
		return result.Evidence{}, err
	}
	path := t.Path
	path.Connect, path.Listen = proof.ClientPeer, proof.ServerLocal
	return prove(&recorder, evidence.Flow{Path: path, Measurement: proof})
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

// changeServices gives services picked at random another backend, and the old ones back, and measures
// the time until a connection reaches the new one.
func (t Task) changeServices(ctx context.Context, m *load.Measurement, c client) error {
	services := t.Lab.AllServices(lab.OtherBackends)
	started := time.Now()
	for n := 0; n < 2 || n < mostChanges && time.Since(started) < serviceTime; n += 2 {
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
	changes(m)
	return nil
}

// isOther reports whether a service is one of a lab's other services.
func isOther(s service.Service) bool { return len(s.Backends) == lab.OtherBackends }
