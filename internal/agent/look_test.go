// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"strings"
	"testing"

	"mustang/internal/kube"
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
		_, _, all := s.merge(of, w)
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
