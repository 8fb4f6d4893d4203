// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

// TestAdd plugs two pods in by each link mode, and sends real traffic: to each
// other, to the host and back, to a service; then CHECK, and DEL, which leaves
// nothing.
func TestAdd(t *testing.T) {
	for _, mode := range modes() {
		t.Run(mode.Name(), func(t *testing.T) {
			testkit.RequireMode(t, mode.Probe())
			testPair(t, newFixture(t), network("net", mode.Name(), ""))
		})
	}
}

// TestAddOpenVSwitch does the same with a switch of Open vSwitch.
func TestAddOpenVSwitch(t *testing.T) {
	if err := podlink.FindOpenVSwitch(); err != nil {
		testkit.Skip(t, err.Error())
	}
	for _, link := range []string{"ovs-veth", "ovs-internal"} {
		t.Run(link, func(t *testing.T) {
			f := newFixture(t)
			dir, err := os.MkdirTemp("", "mst-ovs-") // short, for the paths of sockets
			f.must(err)
			t.Cleanup(func() { f.must(os.RemoveAll(dir)) })
			s, err := podlink.StartOpenVSwitch(f.host, filepath.Join(dir, "ovs"))
			f.must(err)
			t.Cleanup(func() { f.must(s.Stop()) })
			if s.Datapath() == podlink.OVSUserSpace {
				testkit.NeedsOther(t)
			}
			testPair(t, f, network("net", link, fmt.Sprintf(`,"ovsdb":%q`, s.Socket())))
		})
	}
}

// testPair plugs two pods in and out.
func testPair(t *testing.T, f *fixture, config []byte) {
	f.must(f.del(f.added("first", config))) // makes what stays
	before := f.left()
	a, b := f.added("a", config), f.added("b", config)
	for i, ip := range a.ips() {
		f.reach(b.Namespace, a.Namespace, ip)
		f.reach(a.Namespace, b.Namespace, b.ips()[i])
		f.reach(f.host, a.Namespace, ip)
		f.reach(a.Namespace, f.host, gateway(a, i))
		frontend := []string{"10.96.0.9:80", "[fd00:96::9]:80"}[i]
		for _, network := range []string{"tcp", "udp"} {
			service := f.service(frontend, network, a, ip)
			if _, err := testkit.RoundTrip(t, b.Namespace, network, service.String(), make([]byte, 1200)); err != nil {
				t.Errorf("service %s by %s: %v", service, network, err)
			}
		}
	}
	for _, p := range []*pod{a, b} {
		if err := f.check(p); err != nil {
			t.Error("CHECK:", err)
		}
		f.must(f.del(p))
		f.must(f.del(p))
	}
	f.dropServices()
	if after := f.left(); !slices.Equal(before, after) {
		t.Errorf("before %q\nafter  %q", before, after)
	}
}
