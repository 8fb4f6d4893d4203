// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// applier applies the services of one owner to a datapath.
type applier struct {
	*Datapath
	owner service.Owner
}

func (a applier) apply(t *testing.T, want Result, services ...service.Service) {
	t.Helper()
	got, err := a.Services().Apply(t.Context(), a.owner, services)
	failIf(t, err != nil || got != want, "Apply = %+v, %v; want %+v", got, err, want)
}

func rowsOf(t *testing.T, d *Datapath) map[service.Key]service.Service {
	t.Helper()
	all := must(d.Services().List(t.Context()))(t)
	byKey := make(map[service.Key]service.Service)
	for _, s := range all {
		byKey[s.Key()] = s
	}
	return byKey
}

// TestApply applies one set after another.
func TestApply(t *testing.T) {
	d := openTest(t)
	agent := applier{d, service.Agent}
	one := newService(service.TCP, "10.96.0.1:80", "192.168.10.10:8080", "192.168.10.11:8080")
	two := newService(service.Any, "10.96.0.2:80", "192.168.10.10:8080")
	six := newService(service.UDP, "[fd00:96::1]:80", "[fd00:10::a]:8080")
	agent.apply(t, Result{Added: 3, RowsWritten: 4 + 3}, one, two, six)
	wantServices(t, d, one, two, six)
	wantClean(t, d)

	before := rowsOf(t, d)
	reordered := newService(service.TCP, "10.96.0.1:80", "192.168.10.11:8080", "192.168.10.10:8080")
	agent.apply(t, Result{Unchanged: 3}, six, reordered, two)
	changed := newService(service.Any, "10.96.0.2:80", "192.168.10.12:8080")
	agent.apply(t, Result{Updated: 1, Deleted: 1, Unchanged: 1, RowsWritten: 2, RowsDeleted: 3}, changed, one)
	wantServices(t, d, one, changed)
	wantClean(t, d)
	after := rowsOf(t, d)
	a, b := before[one.Key()], after[one.Key()]
	failIf(t, a.Revision != b.Revision || a.ID != b.ID, "%s was written although it is the same: %+v, %+v", one, a, b)
	a, b = before[two.Key()], after[two.Key()]
	failIf(t, a.Revision == b.Revision || a.ID != b.ID, "%+v became %+v; want another revision and the same ID", a, b)

	// The protocols of a frontend change.
	both := newService(service.Any, "10.96.0.1:80", "192.168.10.10:8080")
	agent.apply(t, Result{Added: 1, Deleted: 1, Unchanged: 1, RowsWritten: 2, RowsDeleted: 3}, changed, both)
	wantClean(t, d)
	tcp := newService(service.TCP, "10.96.0.1:80", "192.168.10.10:8080")
	udp := newService(service.UDP, "10.96.0.1:80", "192.168.10.11:8080")
	agent.apply(t, Result{Added: 2, Deleted: 1, Unchanged: 1, RowsWritten: 4, RowsDeleted: 2}, changed, tcp, udp)
	wantServices(t, d, changed, tcp, udp)
	wantClean(t, d)
	agent.apply(t, Result{Deleted: 2, Unchanged: 1, RowsDeleted: 4}, changed)
	agent.apply(t, Result{Deleted: 1, RowsDeleted: 2})
	wantServices(t, d)
	wantClean(t, d)
}

// TestApplyKeepsOwnersApart applies the sets of two owners, which do not affect each other.
func TestApplyKeepsOwnersApart(t *testing.T) {
	d := openTest(t)
	ours := newService(service.TCP, "10.96.0.1:80", "192.168.10.10:8080")
	theirs := newService(service.UDP, "10.96.0.1:80", "192.168.10.10:8080")
	applier{d, service.CNI}.apply(t, Result{Added: 1, RowsWritten: 2}, theirs)
	applier{d, service.Agent}.apply(t, Result{Added: 1, RowsWritten: 2}, ours)
	applier{d, service.Agent}.apply(t, Result{Deleted: 1, RowsDeleted: 2})
	wantServices(t, d, theirs)
	applier{d, service.Agent}.apply(t, Result{Added: 1, RowsWritten: 2}, ours)

	// A frontend of another owner is refused before anything is written.
	before := rowsOf(t, d)
	fresh := newService(service.TCP, "10.96.0.3:80", "192.168.10.10:8080")
	both := newService(service.Any, "10.96.0.1:80", "192.168.10.10:8080")
	for name, err := range map[string]error{
		"Apply":                   errOf(d.Services().Apply(t.Context(), service.Agent, []service.Service{fresh, theirs})),
		"Apply of both protocols": errOf(d.Services().Apply(t.Context(), service.Agent, []service.Service{fresh, both})),
		"Change": errOf(d.Services().Change(t.Context(), service.Agent, []service.Service{fresh, theirs},
			[]service.Key{ours.Key()})),
		"Put":    errOf2(d.Services().Put(t.Context(), service.Agent, theirs)),
		"Delete": d.Services().Delete(t.Context(), service.Agent, theirs.Key()),
	} {
		equal(t, failsAs[*ConflictError](t, err, "%s", name).Owner, service.CNI, "%s: conflict with", name)
		testkit.Fails(t, err, "cni")
	}
	if after := rowsOf(t, d); len(after) != 2 || after[ours.Key()].Revision != before[ours.Key()].Revision ||
		after[theirs.Key()].Revision != before[theirs.Key()].Revision {
		t.Errorf("services %+v, want %+v", after, before)
	}
	twice := errOf(d.Services().Change(t.Context(), service.Agent, []service.Service{fresh, fresh}, nil))
	failIf(t, twice == nil, "one frontend twice: no error")
	result := must(d.Services().Change(t.Context(), service.Agent, []service.Service{ours}, []service.Key{fresh.Key(),
		theirs.Key()}))(t)
	equal(t, result, Result{Unchanged: 1}, "a change of nothing")
	// Of both protocols at a frontend, an owner deletes its own.
	noError(t, d.Services().Delete(t.Context(), service.Agent, service.Key{Frontend: ours.Frontend}))
	wantServices(t, d, theirs)
	wantClean(t, d)
}

// TestHealthPortIsNoNodePort has owners take the health-check port of another's service as node port, and the other way
// round.
func TestHealthPortIsNoNodePort(t *testing.T) {
	checked := newService(service.TCP, "192.0.2.100:80", "192.168.10.10:8080")
	checked.External, checked.ExternalPolicy, checked.HealthCheckPort = true, service.Local, 30000
	nodePort := newService(service.Any, "0.0.0.0:30000", "192.168.10.10:8080")
	nodePort.NodePort = true
	for _, order := range [][]service.Service{{checked, nodePort}, {nodePort, checked}} {
		d := openTest(t)
		applier{d, service.CNI}.apply(t, Result{Added: 1, RowsWritten: 2}, order[0])
		for _, err := range []error{
			errOf(d.Services().Apply(t.Context(), service.Agent, order[1:])),
			errOf2(d.Services().Put(t.Context(), service.CLI, order[1])),
		} {
			testkit.Fails(t, err, "health-check port 30000 is the node port of service 0.0.0.0:30000/any")
		}
		wantServices(t, d, order[0])
		moved := order[0] // the same service may have another
		if moved.HealthCheckPort = 0; moved.NodePort {
			moved.ExternalPolicy, moved.HealthCheckPort = service.Local, 30001
		}
		noError(t, errOf2(d.Services().Put(t.Context(), service.CNI, moved)))
	}
}

// TestRowsKeepFields encodes a service and a backend, and decodes them.
func TestRowsKeepFields(t *testing.T) {
	want := service.Service{
		ID: 7, Revision: 9, Owner: service.Lab, Frontend: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: service.TCP,
		Choice: service.Maglev, OnRemove: service.Reset, HealthCheckPort: 30000,
		Affinity: 3 * time.Hour, NodePort: true, External: true, DSR: service.IPIP, InternalPolicy: service.Local,
		ExternalPolicy: service.Local,
	}
	got := rows.DecodeService(rows.ServiceKey(want.Frontend, want.Protocol), rows.EncodeService(want))
	failIf(t, !got.Equal(want) || got.ID != want.ID || got.Revision != want.Revision || got.Owner != want.Owner,
		"decoded %+v, want %+v", got, want)
	backend := service.Backend{Addr: netip.MustParseAddrPort("[fd00::1]:80"), State: service.Quarantined, Weight: 12,
		Local: true}
	equal(t, rows.DecodeBackend(rows.EncodeBackend(backend)), backend, "decoded")
}

// TestApplyNearlyFull changes sets that fit, while few rows are free for the backends of old and new services at once.
// Cases: changed services, a service that grows before others shrink, and services that a killed process has deleted.
func TestApplyNearlyFull(t *testing.T) {
	d := openFresh(t, objects.Sizes{Services: 1000, Backends: 2100, Connections: 64, Endpoints: 1})
	a := applier{d, service.CLI}
	a.apply(t, Result{Added: 1000, RowsWritten: 3000}, manyServices(1000, 0)...)
	a.apply(t, Result{Updated: 1000, RowsWritten: 3000, RowsDeleted: 2000}, manyServices(1000, 1)...)
	mixed := manyServices(1000, 1)
	for i := range 100 {
		mixed[0].Backends = append(mixed[0].Backends, mixed[i+1].Backends[0])
		mixed[i+900].Backends = mixed[i+900].Backends[:1]
	}
	a.apply(t, Result{Updated: 101, Unchanged: 899, RowsWritten: 303, RowsDeleted: 202}, mixed...)
	wantClean(t, d)
	for _, s := range rowsOf(t, d) {
		die(t, d, s.Key())
	}
	a.apply(t, Result{Added: 1000, RowsWritten: 3000}, manyServices(1000, 2)...)
	wantClean(t, d)
}

// countdown is a context that ends when its error was asked for so many times.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestApplyCancelled ends the context between two chunks; the same call does the rest.
func TestApplyCancelled(t *testing.T) {
	d := openFresh(t, objects.Sizes{Services: 4000, Backends: 16000, Connections: 64, Endpoints: 1})
	const services = 2000
	first, second := manyServices(services, 0), manyServices(services, 1)
	done := 0
	for _, want := range [][]service.Service{first, second, nil} {
		for left := 1; ; left += 3 {
			result, err := d.Services().Apply(&countdown{t.Context(), left}, service.Agent, want)
			if err == nil {
				break
			}
			testkit.Require(t, errors.Is(err, context.Canceled), "%v", err)
			if n := result.Added + result.Updated + result.Deleted; n > 0 && n < services {
				done++
			}
		}
		all, err := d.Services().List(t.Context())
		testkit.Require(t, err == nil && len(all) == len(want), "%d services, %v; want %d", len(all), err, len(want))
		applier{d, service.Agent}.apply(t, Result{Unchanged: len(want)}, want...)
		wantClean(t, d)
	}
	failIf(t, done < 3, "%d calls were cancelled when they had done a part, want some for each set", done)
}

// plan plans changes of the agent: Change, up to the moment in which it takes the lock.
func plan(t *testing.T, d *Datapath, put []service.Service, remove ...service.Key) (write func() error) {
	t.Helper()
	w := &writer{Services: d.Services(), owner: service.Agent, generation: must(d.objects.NodeState.IDs())(t).LastRevision}
	changes := must(w.plan(put, remove, w.stored(t.Context())))(t)
	return func() error { return w.run(t.Context(), changes, nil) }
}

// TestApplyBesideChanges lets another client change services between the plan and the write of a change, at first when
// nothing was ever written.
func TestApplyBesideChanges(t *testing.T) {
	d := openTest(t)
	one := newService(service.TCP, "10.96.0.1:80", "192.168.10.10:8080")
	write := plan(t, d, []service.Service{one})
	applier{d, service.CNI}.apply(t, Result{Added: 1, RowsWritten: 2}, one)
	equal(t, failsAs[*ConflictError](t, write()).Owner, service.CNI)
	wantServices(t, d, one)
	wantClean(t, d)

	applier{d, service.CNI}.apply(t, Result{Deleted: 1, RowsDeleted: 2})
	two := newService(service.TCP, "10.96.0.2:80", "192.168.10.10:8080")
	three := newService(service.TCP, "10.96.0.3:80", "192.168.10.10:8080")
	applier{d, service.Agent}.apply(t, Result{Added: 2, RowsWritten: 4}, one, two)
	changed := newService(service.TCP, "10.96.0.1:80", "192.168.10.11:8080")
	write = plan(t, d, []service.Service{changed, three}, two.Key())
	between := newService(service.TCP, "10.96.0.1:80", "192.168.10.12:8080")
	must2(d.Services().Put(t.Context(), service.Agent, between))(t)
	succeed(t, d.Services().Delete(t.Context(), service.Agent, two.Key()))
	succeed(t, write())
	wantServices(t, d, changed, three)
	wantClean(t, d)

	// Another owner takes the frontend.
	applier{d, service.Agent}.apply(t, Result{Deleted: 2, RowsDeleted: 4})
	write = plan(t, d, []service.Service{changed, three})
	must2(d.Services().Put(t.Context(), service.CNI, three))(t)
	equal(t, failsAs[*ConflictError](t, write()).Owner, service.CNI)
	wantServices(t, d, three)
	wantClean(t, d)
}

// TestRefusedBatch has a map that the kernel refuses to write: nothing counts as written, and the services keep their
// backends.
func TestRefusedBatch(t *testing.T) {
	d := openFresh(t, objects.Sizes{Services: 8, Connections: 64})
	old := newService(service.TCP, "10.96.0.1:80", "192.168.10.10:8080", "192.168.10.11:8080")
	applier{d, service.Agent}.apply(t, Result{Added: 1, RowsWritten: 3}, old)
	succeed(t, d.objects.Services.Map.Freeze())
	changed := newService(service.TCP, "10.96.0.1:80", "192.168.10.12:8080")
	result, err := d.Services().Apply(t.Context(), service.Agent, []service.Service{changed})
	testkit.Check(t, err != nil && result == (Result{}), "Apply = %+v, %v; want an error and nothing done", result, err)
	change, _, err := d.Services().Put(t.Context(), service.Agent, changed)
	testkit.Check(t, err != nil && change == Unchanged, "Put = %v, %v; want an error and no change", change, err)
	wantServices(t, d, old)
	equal(t, rowsIn(t, d.objects.Backends.Map), 2, "backends")
}
