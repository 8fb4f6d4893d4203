// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// attempt is one call of Apply: what is wanted still, and what was given up for it.
type attempt struct {
	s      *Shedder
	node   string
	all    policy.Snapshot // before anything was given up
	want   policies.Set
	here   policy.Snapshot // what was tried last, as the node sees it
	search search
	lost   error
	// What to tell of policies: full of those that there was no room for before, forgot and taken of those that there is none for now. Of the former the labels
	// of their pods are given up, of the latter rules.
	full, forgot, taken []kube.Warning
	// isolated and unknown are as those of Shedder.
	isolated, unknown map[string]string
}

// begin gives up what there was no room for a moment ago.
func (s *Shedder) begin(node string, want policies.Set) *attempt {
	t := &attempt{s: s, node: node, all: want.Snapshot, want: want, isolated: map[string]string{}, unknown: map[string]string{}}
	t.want.Policies = slices.Clone(want.Policies)
	if t.full = s.hold(&t.want); len(t.full) > 0 {
		t.want.Trim(node) // what their rules name is not kept for them
		first := t.full[0]
		t.lost = fmt.Errorf("%d NetworkPolicies have no rules in force, %s/%s with them: %s", len(t.full), first.Namespace, first.Name, first.Text)
	}
	if len(s.unknown) > 0 {
		t.lost = errors.Join(t.lost, fmt.Errorf("labels of the pods of %d namespaces are unknown: there was no room for all", len(s.unknown)))
	}
	t.want.Previous = nil
	return t
}

// write tries to write what is wanted still.
func (t *attempt) write(ctx context.Context, to Policies) error {
	t.step()
	t.here = t.want.Snapshot
	t.here.Node, t.here.Policies, t.here.Previous = t.node, append(slices.Clip(t.want.Policies), ofCluster(t.s.Others)...), t.s.Others
	if err := t.here.CheckOverlaps(); err != nil {
		return err
	}
	t.step()
	_, err := to.Apply(ctx, service.Agent, t.want)
	return err
}

func (t *attempt) step() {
	if t.s.Step != nil {
		t.s.Step()
	}
}

// note remembers what was written, and without what.
func (t *attempt) note() {
	t.s.note(t.all, t.taken, len(t.unknown))
	t.s.Last, t.s.vain = t.want.Policies, vain{}
	t.s.again = t.s.again && len(t.full)+len(t.forgot)+len(t.taken) > 0
	t.s.isolated, t.s.unknown = merged(t.s.isolated, t.isolated), merged(t.s.unknown, t.unknown)
}

// toLose returns what is to be given up after an error.
func (t *attempt) toLose(err error) loss {
	lose := t.search.toLose(t.here, err)
	lose.labels = slices.DeleteFunc(lose.labels, func(namespace string) bool { return t.s.unknown[namespace]+t.unknown[namespace] != "" })
	t.search.forgotten += len(lose.labels)
	return lose
}

// forget gives up the labels of the pods of namespaces.
func (t *attempt) forget(namespaces []string, err error) {
	for _, namespace := range namespaces {
		t.lost = errors.Join(t.lost, fmt.Errorf("labels of the pods of namespace %s are unknown, and its NetworkPolicies allow nothing: %w", namespace, err))
		t.unknown[namespace] = err.Error()
	}
	t.want.Previous = t.s.Others // which keep the labels that they name
	t.forgot = append(t.forgot, forget(&t.want, only(t.unknown, namespaces))...)
	t.want.Previous = nil
}

// strip gives up the rules of some policies.
func (t *attempt) strip(rules []int, err error) {
	if len(rules) == 0 {
		return
	}
	first := t.want.Policies[rules[0]]
	t.lost = errors.Join(t.lost, fmt.Errorf("%d NetworkPolicies have no rules in force, %s/%s with them: %w", len(rules), first.Namespace, first.Name, err))
	for _, i := range rules {
		p := &t.want.Policies[i]
		t.taken = append(t.taken, noRoom(p, "no rules of it are in force: "+reason(err)))
		p.Strip()
	}
	if full := (*objects.FullError)(nil); errors.As(err, &full) && full.Map == policies.Documents {
		t.want.Previous = t.s.Others
		t.want.Trim(t.node) // labels that they name take room
		t.want.Previous = nil
	}
}

// isolate gives up the selectors of the policies of some namespaces, so that these isolate all pods there.
func (t *attempt) isolate(lose loss, err error) {
	namespaces := lose.policy
	if lose.all {
		all := t.here
		all.Policies = t.all.Policies // whatever is together so far
		namespaces = namespacesOf(all, t.s.isolated, t.isolated, t.s.unknown, t.unknown)
		t.want.Policies = renewed(t.want.Policies, t.all.Policies, namespaces)
		t.s.together = true
	}
	if len(namespaces) > 0 {
		t.lost = errors.Join(t.lost, fmt.Errorf("NetworkPolicies of %d namespaces, %s with them, isolate all of their pods: %w", len(namespaces), namespaces[0], err))
	}
	for _, namespace := range namespaces {
		t.isolated[namespace] = reason(err)
	}
	t.taken = slices.DeleteFunc(t.taken, func(w kube.Warning) bool { return slices.Contains(namespaces, w.Namespace) })
	t.taken = append(t.taken, isolate(&t.want, only(t.isolated, namespaces), lose.all)...)
}
