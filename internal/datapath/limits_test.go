// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
	"mustang/internal/testkit"

	"github.com/cilium/ebpf"
)

// TestFull fills maps so that one more service, or a change of one, does not fit, by Apply and by Put: nothing changes.
// It then replaces services while no row is free: the new service fails, the old ones are deleted, and the same call
// again does the rest.
func TestFull(t *testing.T) {
	at := func(i byte, backends int) service.Service {
		var at []string
		for port := range backends {
			at = append(at, fmt.Sprint("192.168.10.10:", 1+port))
		}
		return newService(service.TCP, fmt.Sprintf("10.96.0.%d:80", i), at...)
	}
	maglev := func(i byte) service.Service {
		s := at(i, 2)
		s.Choice = service.Maglev
		return s
	}
	ranged := func(i byte, ranges ...string) service.Service {
		s := at(i, 1)
		s.SourceRanges = prefixes(ranges...)
		return s
	}
	sizes := objects.Sizes{Services: 3, Backends: 6, Tables: 40, SourceRanges: 3, Connections: 64, Endpoints: 1}
	for name, c := range map[string]struct {
		fits []service.Service
		more service.Service
		full string
		then []service.Service // that fit too
	}{
		"rows":     {[]service.Service{at(1, 1), at(2, 1), at(3, 1)}, at(4, 1), "services", nil},
		"backends": {[]service.Service{at(1, 4)}, at(2, 3), "backends", nil},
		"update":   {[]service.Service{at(1, 3), at(2, 2)}, at(1, 5), "backends", nil},
		"tables": {[]service.Service{maglev(1), maglev(2)}, maglev(3), "backend_lut", []service.Service{maglev(1), at(2, 2),
			maglev(3)}},
		"ranges": {[]service.Service{ranged(1, "10.0.0.0/8", "11.0.0.0/8")}, ranged(2, "10.0.0.0/8", "11.0.0.0/8"),
			"source_ranges", nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := openFresh(t, sizes)
			must(d.Services().Apply(t.Context(), service.CLI, c.fits))(t)
			all := slices.DeleteFunc(slices.Clone(c.fits), func(s service.Service) bool { return s.Key() == c.more.Key() })
			wantFull(t, errOf(d.Services().Apply(t.Context(), service.CLI, append(all, c.more))), c.full)
			wantFull(t, errOf2(d.Services().Put(t.Context(), service.CLI, c.more)), c.full)
			wantServices(t, d, c.fits...)
			wantClean(t, d)
			must(d.Services().Apply(t.Context(), service.CLI, c.then))(t)
			wantLen(t, rowsOf(t, d), len(c.then))
			wantClean(t, d)
		})
	}
	d, want := openFresh(t, sizes), []service.Service{at(4, 1), at(1, 1)}
	must(d.Services().Apply(t.Context(), service.CLI, []service.Service{at(1, 1), at(2, 1), at(3, 1)}))(t)
	wantFull(t, errOf(d.Services().Apply(t.Context(), service.CLI, want)), "services")
	wantServices(t, d, want[1])
	wantClean(t, d)
	must(d.Services().Apply(t.Context(), service.CLI, want))(t)
	wantServices(t, d, want[1], want[0])
	wantClean(t, d)
}

// TestNumbersUsedUp has given out all but a few numbers. The changes that would need more are refused, and change
// nothing.
func TestNumbersUsedUp(t *testing.T) {
	d := openFresh(t, objects.Sizes{})
	state := must(d.Services().o.NodeState.IDs())(t)
	state.LastRevision, state.LastService = math.MaxUint32-5, math.MaxUint32-5
	succeed(t, d.Services().o.NodeState.PutIDs(state))
	added := 0
	for port := range uint16(4) {
		s := newService(service.TCP, fmt.Sprint("10.96.0.1:", 80+port), "192.168.10.10:80")
		err := errOf2(d.Services().Put(t.Context(), service.CLI, s))
		if err == nil {
			added++
			continue
		}
		testkit.Require(t, errors.Is(err, errNumbersUsedUp), "%v", err)
	}
	services := must(d.Services().List(t.Context()))(t)
	// One takes two revisions: its own, and the change's.
	testkit.Check(t, added == 2 && len(services) == 2,
		"%d services were added, and there are %d, want 2", added, len(services))
	for _, s := range services {
		failIf(t, len(s.Backends) != 1 || s.Revision < math.MaxUint32-5, "%+v", s)
	}
}

// wantClean fails the test unless the maps hold exactly the rows of the services, and no work is marked as unfinished.
func wantClean(t *testing.T, d *Datapath) {
	t.Helper()
	sum := rows.Counts{}
	for _, s := range rowsOf(t, d) {
		sum = sum.Plus(rows.Count(s), 1)
	}
	equal(t, rowsIn(t, d.objects.Backends.Map), sum.Backends, "backends")
	equal(t, rowsIn(t, d.objects.LookUp.Map), sum.Blocks, "rows of look-up tables")
	equal(t, rowsIn(t, d.objects.SourceRanges.Map), sum.SourceRanges, "source ranges")
	wantAddresses(t, d)
	wantFiltered(t, d)
	state, err := d.objects.NodeState.IDs()
	testkit.Check(t, err == nil && state.Retiring == 0, "state %+v, %v; want nothing to retire", state, err)
}

// TestRetiring deletes the rows of removed backends, tables and source ranges, by each call that removes them, and by
// calls that find the work of a process that died.
func TestRetiring(t *testing.T) {
	for _, choice := range []service.Choice{service.Random, service.Maglev} {
		t.Run(choice.String(), func(t *testing.T) { testRetiring(t, choice) })
	}
}

func testRetiring(t *testing.T, choice service.Choice) {
	old := newService(service.Any, "10.96.0.1:80", "192.168.10.10:8080", "192.168.10.11:8080")
	fewer := newService(service.Any, "10.96.0.1:80", "192.168.10.11:8080")
	old.Choice, fewer.Choice = choice, choice
	old.SourceRanges = prefixes("10.0.0.0/8", "10.1.0.0/16", "192.168.0.0/16")
	fewer.SourceRanges = old.SourceRanges[1:]
	d := openTest(t)
	s := d.Services()
	for name, do := range map[string]func() error{
		"Apply":             func() error { return errOf(s.Apply(t.Context(), service.CLI, []service.Service{fewer})) },
		"Put":               func() error { _, _, err := s.Put(t.Context(), service.CLI, fewer); return err },
		"Apply of nothing":  func() error { _, err := s.Apply(t.Context(), service.CLI, nil); return err },
		"Delete":            func() error { return s.Delete(t.Context(), service.CLI, old.Key()) },
		"unchanged":         func() error { _, _, err := s.Put(t.Context(), service.CLI, old); return err },
		"Sweep after death": func() error { die(t, d, fewer.Key(), fewer); return s.Sweep(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			must2(s.Put(t.Context(), service.CLI, old))(t)
			succeed(t, do())
			wantClean(t, d)
		})
	}
}

// die changes a service, or deletes it, as a process does that dies before it retires the old backends.
func die(t *testing.T, d *Datapath, key service.Key, put ...service.Service) {
	t.Helper()
	w := &writer{Services: d.Services(), owner: service.CLI}
	found := must(w.at(t.Context(), key))(t)
	step := change{put: put, found: found}
	if len(put) == 0 {
		step.drop = found
	}
	succeed(t, w.write(t.Context(), []change{step}))
}

// rowsIn counts the rows of a map.
func rowsIn(t testing.TB, m *ebpf.Map) (n int) {
	t.Helper()
	var key, value []byte
	rows := m.Iterate()
	for rows.Next(&key, &value) {
		n++
	}
	succeed(t, rows.Err())
	return n
}
