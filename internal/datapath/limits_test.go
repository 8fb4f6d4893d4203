// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"math"
	"net/netip"
	"slices"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestFullWithDrops replaces services while no row is free. The new service fails, the old ones are deleted, and the
// same call again does the rest.
func TestFullWithDrops(t *testing.T) {
	at := func(i byte) service.Service {
		backend := service.Backend{Addr: netip.MustParseAddrPort("192.168.10.10:1")}
		return service.Service{
			Frontend: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, i}), 80), Protocol: service.TCP,
			Backends: []service.Backend{backend},
		}
	}
	sizes := objects.Sizes{Services: 3, Backends: 6, Tables: 40, SourceRanges: 3, Connections: 64, Endpoints: 1}
	d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root", Sizes: sizes})
	must(d.Services().Apply(t.Context(), service.CLI, []service.Service{at(1), at(2), at(3)}))(t)
	want := []service.Service{at(4), at(1)}
	wantFull(t, errOf(d.Services().Apply(t.Context(), service.CLI, want)), "services")
	wantServices(t, d, at(1))
	wantClean(t, d)
	must(d.Services().Apply(t.Context(), service.CLI, want))(t)
	wantServices(t, d, at(1), at(4))
	wantClean(t, d)
}

// TestFull fills maps so that one more service, or a change of one, does not fit, by Apply and by Put: nothing changes.
func TestFull(t *testing.T) {
	at := func(i byte, backends int) service.Service {
		s := service.Service{Frontend: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, i}), 80), Protocol: service.TCP}
		for port := range uint16(backends) {
			s.Backends = append(s.Backends,
				service.Backend{Addr: netip.AddrPortFrom(netip.MustParseAddr("192.168.10.10"), 1+port)})
		}
		return s
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
			d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root", Sizes: sizes})
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
}

// TestNumbersUsedUp has given out all but a few numbers. The changes that would need more are refused, and change
// nothing.
func TestNumbersUsedUp(t *testing.T) {
	d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root"})
	state := must(d.Services().o.NodeState.IDs())(t)
	state.LastRevision, state.LastService = math.MaxUint32-5, math.MaxUint32-5
	succeed(t, d.Services().o.NodeState.PutIDs(state))
	added := 0
	for port := range uint16(4) {
		_, _, err := d.Services().Put(t.Context(), service.CLI, service.Service{
			Frontend: netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), 80+port), Protocol: service.TCP,
			Backends: []service.Backend{{Addr: netip.MustParseAddrPort("192.168.10.10:80")}},
		})
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
	wantSlots(t, d, sum.Backends)
	wantBlocks(t, d, sum.Blocks)
	equal(t, rangesOf(t, d), sum.SourceRanges, "source ranges")
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
		"Apply": func() error {
			_, err := s.Apply(t.Context(), service.CLI,
				[]service.Service{fewer})
			return err
		},
		"Put":               func() error { _, _, err := s.Put(t.Context(), service.CLI, fewer); return err },
		"Apply of nothing":  func() error { _, err := s.Apply(t.Context(), service.CLI, nil); return err },
		"Delete":            func() error { return s.Delete(t.Context(), service.CLI, old.Key()) },
		"unchanged":         func() error { _, _, err := s.Put(t.Context(), service.CLI, old); return err },
		"Sweep after death": func() error { die(t, d, fewer); return s.Sweep(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			must2(s.Put(t.Context(), service.CLI, old))(t)
			succeed(t, do())
			wantClean(t, d)
		})
	}
}

// die changes a service as a process does that dies before it retires the old backends.
func die(t *testing.T, d *Datapath, want service.Service) {
	t.Helper()
	w := &writer{Services: d.Services(), owner: service.CLI}
	found := must(w.at(t.Context(), want.Key()))(t)
	succeed(t, w.write(t.Context(), []change{{put: []service.Service{want}, found: found}}))
}

// dieDeleting deletes a service as a process does that dies before it retires the backends.
func dieDeleting(t *testing.T, d *Datapath, old service.Service) {
	t.Helper()
	w := &writer{Services: d.Services(), owner: service.CLI}
	found := must(w.at(t.Context(), old.Key()))(t)
	succeed(t, w.write(t.Context(), []change{{drop: found, found: found}}))
}

// wantBlocks counts the rows of look-up tables.
func wantBlocks(t *testing.T, d *Datapath, want int) {
	t.Helper()
	n := 0
	for _, err := range d.objects.LookUp.All() {
		succeed(t, err)
		n++
	}
	failIf(t, n != want, "%d rows of look-up tables, want %d", n, want)
}
