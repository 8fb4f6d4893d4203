// SPDX-License-Identifier: Apache-2.0

// Package cnibench measures how long CNI plugins take to attach pods and to detach
// them, called as a container runtime calls them. After each ADD and DEL it checks that
// the plugin did so: addresses, reservations, connectivity, and what remains after DEL.
package cnibench

import (
	"context"

	"mustang/internal/result"
)

// Run measures a batch. The sample of the other verb, which the same trial yields, is
// kept and returned when its batch is run. If the plugin did not do what it reports,
// Run returns the evidence with an [*evidence.Error].
func (t *Testbed) Run(ctx context.Context, b Batch) (Sample, error) {
	if s, ok := t.pending[b]; ok {
		delete(t.pending, b)
		return s, nil
	}
	r := trial{testbed: t, plugin: b.Plugin, pods: b.Pods, concurrent: b.Concurrent}
	add, del, err := r.run(ctx)
	if err != nil {
		return add, err
	}
	other := b
	if b.Workload == result.WorkloadCNIDel {
		other.Workload = result.WorkloadCNIAdd
		t.pending[other] = add
		return del, nil
	}
	other.Workload = result.WorkloadCNIDel
	t.pending[other] = del
	return add, nil
}

// Prove checks that a plugin works: it attaches a pod and detaches it, twice. The first
// time may leave a device on the host that all pods of the network share; the second
// time must leave nothing. Further calls return the same error.
func (t *Testbed) Prove(ctx context.Context, plugin *Plugin) error {
	if known, ok := t.proven[plugin]; ok {
		return known.err
	}
	var kept []string
	for i := range 2 {
		r := trial{testbed: t, plugin: plugin, pods: 1, first: i == 0}
		if _, _, err := r.run(ctx); err != nil {
			if ctx.Err() == nil {
				t.proven[plugin] = proof{err: err}
			}
			return err
		}
		kept = append(kept, r.kept...)
	}
	t.proven[plugin] = proof{kept: kept}
	return nil
}
