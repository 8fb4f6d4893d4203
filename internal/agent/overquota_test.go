// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"mustang/internal/agent/status"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// quotaOf refuses policies of a namespace that are more than some, or have more rules.
type quotaOf struct {
	Policies
	policies, rules int
	written         []policy.Policy
}

func (q *quotaOf) Apply(_ context.Context, _ service.Owner, want policies.Set) (r policies.Result, err error) {
	number, rules := map[string]int{}, map[string]int{}
	for _, p := range want.Policies {
		number[p.Namespace]++
		rules[p.Namespace] += len(p.Ingress)
	}
	for _, name := range []string{"many", "rules", "shop"} {
		if want.Quota > 1 && (number[name] > q.policies || rules[name] > q.rules) {
			err = &policy.QuotaError{Over: []*policy.LimitError{{Namespace: name, What: "verdict rows", Number: 2, Limit: 1}}}
		}
	}
	if err == nil {
		q.written = want.Policies
	}
	return r, err
}

// TestOverQuota has one namespace with too many rules, and one with too many policies even without rules: the first keeps its policies, which isolate what
// they select, and one policy isolates all pods of the second. Those of a shop keep their rules.
func TestOverQuota(t *testing.T) {
	q := &quotaOf{policies: 4, rules: 8}
	a := New(Options{Node: "here", Policies: q, State: status.NewTracker(), Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	var want policies.Set
	add := func(namespace string, number, rules int) {
		for n := range number {
			p := policy.Policy{Tier: policy.Namespaced, Namespace: namespace, Name: fmt.Sprint(n), IsolatesIngress: n > 0, IsolatesEgress: n == 0, Ingress: make([]policy.Rule, rules)}
			p.Subject.Namespaces.Labels = map[string]string{policy.NamespaceLabel: namespace}
			p.Subject.Pods.Labels = map[string]string{"app": p.Name}
			want.Policies = append(want.Policies, p)
		}
	}
	add("many", 5, 1)
	add("rules", 3, 3)
	add("shop", 2, 4)
	if degraded, err := a.applyPolicies(t.Context(), want, 1); degraded != nil || err != nil {
		t.Fatal(degraded, err)
	}
	have := map[string]int{}
	for _, p := range q.written {
		all := p.Subject.Pods.Labels == nil
		if have[p.Namespace]++; all != (p.Namespace == "many") || len(p.Ingress) > 0 != (p.Namespace == "shop") || all && !(p.IsolatesIngress && p.IsolatesEgress) {
			t.Errorf("there is %+v", p)
		}
	}
	if fmt.Sprint(have) != "map[many:1 rules:3 shop:2]" || len(a.noRoom) != 8 || len(a.overQuota) != 2 {
		t.Errorf("there are %v, refused %v, and %q", have, a.noRoom, a.overQuota)
	}
	if len(want.Policies[0].Ingress) != 1 {
		t.Error("the caller's policies were edited")
	}
}
