// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"net/netip"

	"mustang/internal/bench/cnibench"
	"mustang/internal/bench/evidence"
	"mustang/internal/bench/probe"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
)

// take measures a path once. If the evidence contradicts the path, it returns the
// sample and an [*evidence.Error].
func (t *testbed) take(ctx context.Context, p suites.Path, spec load.Spec) (sample, error) {
	if t.peer != nil {
		return t.takeToPeer(ctx, p, spec)
	}
	l, err := t.lab(ctx, p.Lab)
	if err != nil {
		return sample{}, err
	}
	client, namespace, err := t.clientOf(ctx, p, spec.Workload)
	if err != nil {
		return sample{}, err
	}
	spec.Namespace = namespace
	var s sample
	err = t.openIn(l, client, func() (err error) {
		s, err = recordedPath{p.Path, evidence.Recorder{Lab: l}}.measure(ctx, client, spec)
		return err
	})
	return s, err
}

// prove carries a little load over a path as its turns do.
func (t *testbed) prove(ctx context.Context, p suites.Path, spec load.Spec) (sample, error) {
	recorders := map[*lab.Lab]*evidence.Recorder{}
	s, err := t.open(ctx, p, spec, recorders)
	if err != nil {
		return sample{}, err
	}
	_, err = s.client.Slices(ctx, []load.Slice{{Conn: s.connection.ID, Lead: -1, Duration: spec.Duration}})
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutTimeout)
	defer cancel()
	m, shutErr := s.client.Shut(late, s.connection.ID)
	if err := cmp.Or(err, shutErr); err != nil {
		return sample{}, err
	}
	seen, err := recorders[s.lab].Stop(evidence.Flow{Path: p.Path, Measurement: m})
	if err != nil {
		return sample{}, err
	}
	return sample{measurement: m, evidence: seen[0]}, evidence.Contradiction(seen[0])
}

// peerLab returns a lab that is alone on the peer's network: all labs have the same
// addresses there.
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

// takeToPeer measures a path to the peer once.
func (t *testbed) takeToPeer(ctx context.Context, p suites.Path, spec load.Spec) (_ sample, err error) {
	client := t.peer.client
	path, recorder := p.Path, evidence.Recorder{Machine: t.peer.ns}
	if !p.HostToHost() {
		if recorder.Lab, err = t.peerLab(ctx, p.Lab); err != nil {
			return sample{}, err
		}
		if client, err = t.agent(ctx, agentKey{p.Lab, p.Client, netip.AddrPort{}}); err != nil {
			return sample{}, err
		}
	}
	if err := t.peer.serve(ctx); err != nil {
		return sample{}, err
	}
	spec.Target = t.peer.server.Address()
	path.Connect, path.Listen = spec.Target, spec.Target
	taken, err := recordedPath{path, recorder}.measure(ctx, client, spec)
	if err != nil && ctx.Err() == nil {
		err = t.peer.explain(ctx, err)
	}
	return taken, err
}

// takeCalls measures a batch of calls of a plugin.
func (t *testbed) takeCalls(ctx context.Context, row rowSpec, calls int) (sample, error) {
	plugins, err := t.pluginTestbed(ctx, row.path.Lab)
	if err != nil {
		return sample{}, err
	}
	s, err := plugins.Run(ctx, cnibench.Batch{
		Row: row.path.ID, Plugin: row.path.Plugin, Workload: row.workload.Name, Pods: calls, Concurrent: row.workload.Flows > 1,
	})
	return sample{measurement: s.Measurement, evidence: s.Evidence}, err
}

// provePlugin checks that a plugin works.
func (t *testbed) provePlugin(ctx context.Context, p suites.Path) error {
	plugins, err := t.pluginTestbed(ctx, p.Lab)
	if err != nil {
		return err
	}
	return plugins.Prove(ctx, p.Plugin)
}

// takeTables measures a table of services, or changes of a network policy.
func (t *testbed) takeTables(ctx context.Context, row rowSpec) (sample, error) {
	l, err := t.lab(ctx, row.path.Lab)
	if err != nil {
		return sample{}, err
	}
	s, err := probe.Task{Lab: l, Path: row.path.Path, Workload: row.workload.Name, CPU: t.cpus.Client}.Run(ctx)
	return sample{measurement: s.Measurement, evidence: s.Evidence}, err
}
