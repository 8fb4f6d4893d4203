// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/conntrack"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestPromises has a client use services whose backends are chosen, change and go, in the link modes of the table in
// docs/services.md.
func TestPromises(t *testing.T) {
	onPods(t, "veth, bridge, macvlan, ipvlan-l2, netkit", func(t *testing.T, n network, d *Datapath) {
		for _, f := range families() {
			p := promise{n, d, f, nil}
			for range 4 {
				p.backends = append(p.backends, testkit.Echo(t, n.pods[0], "tcp", net.JoinHostPort(f.pod, "0")))
			}
			t.Run(f.name, p.test)
		}
	})
}

// promise is a service of one family, and the pods that it is for.
type promise struct {
	network  network
	datapath *Datapath
	family   family
	backends []netip.AddrPort
}

func (p promise) test(t *testing.T) {
	t.Run("states", p.states)
	t.Run("weights", p.weights)
	t.Run("maglev", p.maglev)
	t.Run("affinity", p.affinity)
	t.Run("changes", p.changes)
}

// put stores the service.
func (p promise) put(t *testing.T, change func(*service.Service)) service.Service {
	t.Helper()
	s := service.Service{Frontend: netip.MustParseAddrPort(net.JoinHostPort(p.family.service, servicePort)), Protocol: service.TCP,
		Backends: service.Backends(p.backends...)}
	change(&s)
	must2(p.datapath.Services().Put(t.Context(), service.CLI, s))(t)
	return s
}

// chosen opens connections, and returns how many of those that are still in the table each
// backend got. Ended ones make room for new ones after a second or so.
func (p promise) chosen(t *testing.T, connections int) []int {
	t.Helper()
	must(p.datapath.ConnectionTable().Flush(t.Context(), conntrack.Filter{}))(t)
	for range connections {
		must(testkit.RoundTrip(t, p.network.pods[1], "tcp", net.JoinHostPort(p.family.service, servicePort), []byte("x")))(t)
	}
	list := must(p.datapath.Connections())(t)
	counts := make([]int, len(p.backends))
	for i, backend := range p.backends {
		for _, c := range list {
			if c.Backend == backend {
				counts[i]++
			}
		}
	}
	return counts
}

func (p promise) states(t *testing.T) {
	p.put(t, func(s *service.Service) {
		s.Backends[0].State, s.Backends[1].State, s.Backends[2].State = service.Terminating, service.Draining, service.Quarantined
	})
	if got := p.chosen(t, 12); got[0]+got[1]+got[2] != 0 || got[3] == 0 {
		t.Errorf("backends that are terminating, draining, quarantined, active got %v connections", got)
	}
	p.put(t, func(s *service.Service) {
		s.Backends[0].State, s.Backends[1].State, s.Backends[2].State = service.Terminating, service.Draining, service.Quarantined
		s.Backends = s.Backends[:3]
	})
	if got := p.chosen(t, 6); got[0] == 0 || got[1]+got[2] != 0 {
		t.Errorf("backends that are terminating, draining, quarantined got %v connections", got)
	}
}

func (p promise) weights(t *testing.T) {
	p.put(t, func(s *service.Service) { s.Backends[0].Weight = 1000 })
	if got := p.chosen(t, 24); got[0] == 0 || got[1]+got[2]+got[3] > got[0]/3 { // 0.07 of 24 are the others'
		t.Errorf("of 1000:1:1:1, the backends got %v", got)
	}
}

func (p promise) maglev(t *testing.T) {
	p.put(t, func(s *service.Service) { s.Choice = service.Maglev })
	used := 0
	for _, n := range p.chosen(t, 48) {
		if n > 0 {
			used++
		}
	}
	if used < 2 {
		t.Errorf("48 connections went to %d backends", used)
	}
}

func (p promise) affinity(t *testing.T) {
	p.put(t, func(s *service.Service) { s.Affinity = time.Hour })
	used := 0
	for _, n := range p.chosen(t, 16) {
		if n > 0 {
			used++
		}
	}
	if used != 1 {
		t.Errorf("one client used %d backends", used)
	}
}

// changes takes backends away from open connections, the last one in the end.
func (p promise) changes(t *testing.T) {
	s := p.put(t, func(*service.Service) {})
	conn := must(testkit.Dial(p.network.pods[1], "tcp", s.Frontend.String()))(t)
	defer func() { _ = conn.Close() }()
	exchange := func() error {
		if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		if _, err := conn.Write([]byte("x")); err != nil {
			return err
		}
		_, err := conn.Read(make([]byte, 100))
		return err
	}
	for left := len(p.backends); left >= 0; left-- {
		p.put(t, func(s *service.Service) { s.Backends = s.Backends[len(s.Backends)-left:] })
		if err := exchange(); err != nil {
			t.Fatalf("%d backends left: an open connection: %v", left, err)
		}
	}
	if _, err := testkit.Dial(p.network.pods[1], "tcp", s.Frontend.String()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a new connection: %v, want it refused", err)
	}
}
