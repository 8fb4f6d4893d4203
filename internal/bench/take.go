// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"mustang/internal/bench/cnibench"
	"mustang/internal/bench/evidence"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
)

func (t *testbed) take(ctx context.Context, p suites.Path, spec load.Spec) (s sample, err error) {
	if t.peer != nil {
		return t.takeToPeer(ctx, p, spec)
	}
	c, err := t.prepare(ctx, p, spec)
	if err != nil {
		return s, err
	}
	err = t.openIn(c.lab, c.client, func() (err error) {
		s, err = record(evidence.Recorder{Lab: c.lab}, evidence.Flow{Path: p.Path, MayLoseAll: spec.Rate > proofRate},
			func() (load.Measurement, error) { return c.client.Run(ctx, c.spec) })
		return err
	})
	return s, err
}

func record(r evidence.Recorder, flow evidence.Flow, carry func() (load.Measurement, error)) (s sample, err error) {
	s.lab = r.Lab
	s.evidence, err = r.Record(func() (evidence.Flow, error) {
		var err error
		s.measurement, err = carry()
		flow.Measurement = s.measurement
		return flow, err
	})
	return s, err
}

func (t *testbed) prove(ctx context.Context, p suites.Path, spec load.Spec) (s sample, err error) {
	c, err := t.prepare(ctx, p, spec)
	if err != nil {
		return s, err
	}
	return record(evidence.Recorder{Lab: c.lab}, evidence.Flow{Path: p.Path}, func() (load.Measurement, error) {
		if err := t.connect(ctx, []*connection{c})[0]; err != nil {
			return load.Measurement{}, err
		}
		_, err := c.client.Slices(ctx, []load.Slice{{Conn: c.connection.ID, Lead: -1, Duration: spec.Duration}})
		if err != nil {
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutTimeout)
			defer cancel()
			ctx = late
		}
		m, shutErr := c.client.Shut(ctx, c.connection.ID)
		return m, cmp.Or(err, shutErr)
	})
}

// peerLab returns a lab that is alone on the peer's network: all labs have the same addresses there.
func (t *testbed) peerLab(ctx context.Context, o lab.Options) (*lab.Lab, error) {
	if l := t.peer.connected; l != nil && l == t.labs[o] {
		return l, nil
	}
	if err := t.peer.disconnect(); err != nil {
		return nil, err
	}
	l, err := t.lab(ctx, o)
	if err != nil {
		return nil, err
	}
	t.peer.connected = l
	return l, l.Connect()
}

func (t *testbed) takeToPeer(ctx context.Context, p suites.Path, spec load.Spec) (_ sample, err error) {
	client := t.peer.client
	path, recorder := p.Path, evidence.Recorder{Machine: t.peer.ns}
	if !p.HostToHost() {
		if recorder.Lab, err = t.peerLab(ctx, p.Lab); err != nil {
			return sample{}, err
		}
		if client, err = t.agent(ctx, recorder.Lab, agentKey{p.Lab, p.Client, netip.AddrPort{}}); err != nil {
			return sample{}, err
		}
	}
	if err := t.peer.serve(ctx); err != nil {
		return sample{}, err
	}
	spec.Target = t.peer.server.Address()
	path.Connect, path.Listen = spec.Target, spec.Target
	return record(recorder, evidence.Flow{Path: path, MayLoseAll: spec.Rate > proofRate},
		func() (load.Measurement, error) { return client.Run(ctx, spec) })
}

// takeCalls calls a plugin for a number of pods; 0 proves the path alone.
func (t *testbed) takeCalls(ctx context.Context, row rowSpec, calls int) (sample, error) {
	plugins, err := t.pluginTestbed(ctx, row.path.Lab)
	if err != nil {
		return sample{}, err
	}
	if calls == 0 {
		return sample{}, plugins.Prove(ctx, row.path.Plugin)
	}
	s, err := plugins.Run(ctx, cnibench.Batch{
		Row: row.path.ID, Plugin: row.path.Plugin, Workload: row.workload.Name, Pods: calls,
		Concurrent: row.workload.Flows > 1,
	})
	return sample{measurement: s.Measurement, evidence: s.Evidence}, err
}

// prove builds the labs of rows and sends traffic over each path, so no row starts cold, and wrong paths fail early.
func (r *run) prove(ctx context.Context, rows []*measuredRow) error {
	if r.options.sliced(rows[0].spec.suite) {
		begun := time.Now()
		if err := r.testbed.build(ctx, labsOf(rows)); err != nil {
			return err
		}
		r.built = time.Since(begun)
	}
	for _, row := range rows {
		if row.done() || row.spec.workload.OfTables() { // whose samples have their own proof
			continue
		}
		s, err := r.take(ctx, row.spec, true)
		switch {
		case err == nil:
			row.proof = s.evidence
			if m := s.measurement; row.spec.path.Ends != nil && m.ServerPeer.Addr() != m.ClientLocal.Addr() {
				row.addNote("the server sees another address than the client's: it is masqueraded")
			}
		case ctx.Err() != nil:
			return err
		case errors.Is(err, errors.ErrUnsupported): // by this kernel
			row.skip(err)
		default:
			if err := r.fail(row, err); err != nil {
				return err
			}
		}
	}
	for _, row := range rows {
		row.addNote(r.testbed.notes[row.spec.path.Lab])
	}
	if err := r.testbed.offloads(r.head.Offloads); err != nil || r.options.counting() {
		return err
	}
	return r.write()
}

func (o Options) figure(m load.Measurement) (figure, error) {
	if o.counting() {
		return countedFigure(m)
	}
	return figure{m.Rate, m.Unit, m.CPUUnit, m.CPUMicrosPerUnit(), m.SoftirqsPerUnit()}, nil
}

// countedFigure returns the instructions per packet or transaction. Lost packets, whose cost is unknown, are an error.
func countedFigure(m load.Measurement) (figure, error) {
	f := figure{unit: result.UnitPerTransaction, cpuUnit: "transaction"}
	count := m.Count
	if m.Workload == load.UDPStream {
		f.unit, f.cpuUnit, count = result.UnitPerPacket, "packet", m.Received
		if m.Received < m.Sent {
			return figure{}, fmt.Errorf("%d of %d packets were lost, their cost is unknown", m.Sent-m.Received, m.Sent)
		}
	}
	if count == 0 || m.BusyNanos == 0 {
		return figure{}, errors.New("no instructions were counted")
	}
	f.value = float64(m.BusyNanos) / float64(count)
	f.softirqs = float64(m.Machine.NetRX+m.Machine.NetTX) / float64(count)
	return f, nil
}
