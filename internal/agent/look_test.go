// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/kube"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// costly has so many Services of much work each, and one of little, which sorts last.
func costly(t *testing.T, n int) *serviceSet {
	t.Helper()
	var ports, endpoints []string
	for i := range 600 {
		ports = append(ports, fmt.Sprintf(`{"name": "p%d", "port": %d}`, i, i+1))
		endpoints = append(endpoints, fmt.Sprintf(`{"addresses": ["20.0.%d.%d"]}`, i/200, i%200+1))
	}
	s := newServiceSet("here")
	put := func(kind kube.Kind, name, object string) {
		t.Helper()
		if err := s.on(kube.Event{Kind: kind, Namespace: "shop", Name: name, Object: []byte(object)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		name := fmt.Sprintf("costly-%03d", i)
		put(kube.Services, name, fmt.Sprintf(`{"spec": {"clusterIP": "10.96.1.%d", "ports": [%s]}}`, i, strings.Join(ports, ",")))
		put(kube.EndpointSlices, name, fmt.Sprintf(`{"metadata": {"labels": {"kubernetes.io/service-name": %q}}, "addressType": "IPv4", "ports": [%s], "endpoints": [%s]}`,
			name, strings.Join(ports, ","), strings.Join(endpoints, ",")))
	}
	put(kube.Services, "web", serviceAt("web", "10.96.0.1", ""))
	return s
}

// TestCostlyServices has Services of much work looked at in some rounds, each in its turn, though all of them change all the time. Others
// are looked at in the first round, and all are written once each was.
func TestCostlyServices(t *testing.T) {
	const n = 50
	s := costly(t, n)
	names := s.cluster.Names()
	s.all = true
	w, seen := quiet(), map[manifest.Name]bool{}
	for round := range n {
		of := s.take()
		if len(of) > 18 || of[0].name.Name != "web" {
			t.Fatalf("round %d looks at %d Services, the first is %s", round, len(of), of[0].name)
		}
		for _, l := range of {
			seen[l.name] = true
		}
		if len(s.underway) != len(of) {
			t.Errorf("round %d: %d Services are under way, want %d", round, len(s.underway), len(of))
		}
		_, services, _ := s.merge(of, w)
		all := services != nil
		if all != (len(seen) == n+1) {
			t.Fatalf("round %d: %d Services were looked at, and all is %v", round, len(seen), all)
		}
		if all {
			if round < 2 || !s.more() {
				t.Errorf("round %d is the last", round)
			}
			return
		}
		for _, name := range names {
			s.dirty[name] = true
		}
	}
	t.Errorf("%d Services were looked at", len(seen))
}

// TestChangeWhileLooked has a Service changed while a round looks at it: the next round has the change.
func TestChangeWhileLooked(t *testing.T) {
	s := newServiceSet("here")
	for i, ip := range []string{"10.96.0.1", "10.96.0.2"} {
		of := s.take()
		if err := s.on(kube.Event{Kind: kube.Services, Namespace: "shop", Name: "web", Object: []byte(serviceAt("web", ip, ""))}); err != nil {
			t.Fatal(err)
		}
		look(of)
		if s.merge(of, quiet()); len(s.wanted.services()) != i || !s.more() {
			t.Errorf("round %d: there are %v, more %v", i, s.wanted.services(), s.more())
		}
	}
	if all := s.wanted.services(); all[0].Frontend.String() != "10.96.0.1:80" {
		t.Errorf("there are %v", all)
	}
	if collect(s, quiet()); s.wanted.services()[0].Frontend.String() != "10.96.0.2:80" || s.more() {
		t.Errorf("after all there are %v", s.wanted.services())
	}
}

// roomy is a table with room for some frontends and backends, that counts what it is asked to write until then.
type roomy struct {
	*table
	room, asked int
}

func (r *roomy) Change(ctx context.Context, owner service.Owner, put []service.Service, remove []service.Key) (datapath.Result, error) {
	rows := 0
	for _, s := range put {
		rows += 1 + len(s.Backends)
	}
	r.asked += rows
	if rows > r.room {
		return datapath.Result{}, &objects.FullError{Map: "backends"}
	}
	r.room -= rows
	return r.table.Change(ctx, owner, put, remove)
}

func (r *roomy) Apply(context.Context, service.Owner, []service.Service) (datapath.Result, error) {
	return datapath.Result{}, errors.New("all at once")
}

// TestLittleBeforeMuch writes a Service of one backend though another asks for more than there is room for, and tries little of that.
func TestLittleBeforeMuch(t *testing.T) {
	backends := make([]service.Backend, 4000)
	big, web := manifest.Name{Namespace: "evil", Name: "big"}, manifest.Name{Namespace: "shop", Name: "web"}
	var all []service.Service
	at := func(i byte) netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, i}), 80) }
	for i := range byte(60) {
		all = append(all, service.Service{Frontend: at(i), Protocol: service.TCP, Backends: backends})
	}
	for _, whole := range []bool{false, true} {
		c, w := changes{}, newWanted(manifest.Name.Compare, noBalancer)
		w.set(big, all, c)
		w.set(web, []service.Service{{Frontend: at(99), Protocol: service.TCP, Backends: backends[:1]}}, c)
		to := &roomy{table: &table{rows: map[service.Key]service.Service{}}, room: 50_000}
		var failed failures
		if whole {
			var err error
			if failed, err = applyAll(t.Context(), to, w.services(), w); err != nil {
				t.Fatal(err)
			}
		} else {
			failed = c.write(t.Context(), to, w)
		}
		if _, ok := to.rows[service.Key{Frontend: at(99), Protocol: service.TCP}]; !ok || len(to.rows) != 13 || len(failed) != 61-13 {
			t.Errorf("%d are written, that of little %v, and %d failed", len(to.rows), ok, len(failed))
		}
		if to.asked > 2*50_000 {
			t.Errorf("%d rows were asked for", to.asked)
		}
		if n := len(parts(failed.err())); n != 1 {
			t.Errorf("%d errors tell why", n)
		}
	}
}
