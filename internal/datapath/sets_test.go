// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"os"
	"testing"

	"mustang/internal/service"
)

// TestApplyEndpointsMakesTheOwnersSet applies sets of pods and looks at what each owner has then.
func TestApplyEndpointsMakesTheOwnersSet(t *testing.T) {
	n, d := routed(t), openTest(t)
	a, b := n.attachment(0), n.attachment(1)
	apply := func(owner service.Owner, want Result, specs ...EndpointSpec) {
		t.Helper()
		got, err := d.Endpoints().Apply(t.Context(), owner, specs)
		if err != nil || got != want {
			t.Errorf("Apply = %+v, %v; want %+v", got, err, want)
		}
	}
	owners := func() map[uint32]service.Owner {
		t.Helper()
		all := must(d.Endpoints().List(t.Context()))(t)
		owners := map[uint32]service.Owner{}
		for _, row := range all {
			owners[row.ID] = row.Owner
		}
		return owners
	}

	apply(service.Agent, Result{Added: 2}, a, b)
	apply(service.Agent, Result{Unchanged: 2}, a, b)
	apply(service.Agent, Result{Unchanged: 1, Deleted: 1}, a)
	apply(service.CNI, Result{Added: 1}, b)
	if got := owners(); len(got) != 2 {
		t.Errorf("owners are %v", got)
	}

	var conflict *ConflictError
	if _, err := d.Endpoints().Apply(t.Context(), service.Agent, []EndpointSpec{a, b}); !errors.As(err, &conflict) {
		t.Errorf("Apply to another owner's pod: %v", err)
	}
	missing := a
	missing.IfName = "eth7"
	if _, err := d.Endpoints().Apply(t.Context(), service.Agent, []EndpointSpec{missing}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Apply to a missing device: %v", err)
	}
	if got := owners(); len(got) != 2 {
		t.Errorf("a failure left owners %v", got)
	}

	apply(service.Agent, Result{Deleted: 1})
	for id, owner := range owners() {
		if owner != service.CNI {
			t.Errorf("endpoint %d belongs to %s", id, owner)
		}
	}
}

// TestApplyUplinksMakesTheSetOfANamespace applies sets of uplinks of a host.
func TestApplyUplinksMakesTheSetOfANamespace(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.run(t, "-n HOST link add up1 type veth peer name up1-far\n-n HOST link add up2 type veth peer name up2-far")
	for _, step := range []struct {
		devices []string
		want    Result
	}{
		{[]string{"up1", "up2"}, Result{Added: 2}},
		{[]string{"up1", "up2"}, Result{Unchanged: 2}},
		{[]string{"up2"}, Result{Unchanged: 1, Deleted: 1}},
		{nil, Result{Deleted: 1}},
	} {
		got, err := d.Uplinks().Apply(t.Context(), n.host, step.devices)
		if err != nil || got != step.want {
			t.Errorf("Apply(%v) = %+v, %v; want %+v", step.devices, got, err, step.want)
		}
		if all, err := d.Uplinks().List(t.Context()); err != nil || len(all) != len(step.devices) {
			t.Errorf("uplinks are %v, %v", all, err)
		}
	}
	if _, err := d.Uplinks().Apply(t.Context(), n.host, []string{"up1", "nobody"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Apply with a missing device: %v", err)
	}
	if all, err := d.Uplinks().List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("a failure left uplinks %v, %v", all, err)
	}
}
