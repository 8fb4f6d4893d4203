// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"slices"
	"strings"
	"testing"

	"mustang/internal/lab"
)

// TestSuitesNameExistingRows checks that IDs are unique, and that pairs name existing rows.
func TestSuitesNameExistingRows(t *testing.T) {
	for _, s := range List() {
		ids := map[string]bool{}
		for _, p := range s.Paths {
			if ids[p.ID] {
				t.Errorf("%s: %s appears twice", s.Name, p.ID)
			}
			ids[p.ID] = true
		}
		again := 0
		for _, p := range s.Pairs {
			if !ids[p.Numerator] || !ids[p.Denominator] {
				t.Errorf("%s: pair %q of %q and %q, at least one of them unknown", s.Name, p.Name, p.Numerator, p.Denominator)
			}
			if p.AA {
				again++
			}
		}
		if again == 0 {
			t.Errorf("%s: no A/A comparison", s.Name)
		}
		if len(s.Workloads) == 0 {
			t.Errorf("%s: no workloads", s.Name)
		}
	}
	if _, err := Lookup("nope"); err == nil {
		t.Error("Lookup found suite nope")
	}
	if all, err := Lookup(All); err != nil || len(all) != len(List()) {
		t.Errorf("all: %d suites, %v", len(all), err)
	}
}

// TestCNIConfigurations checks that each path of suite cni has a valid network name, and
// a network of its own.
func TestCNIConfigurations(t *testing.T) {
	networks := map[string]string{}
	for _, p := range cni().Paths {
		network := p.Plugin.Network
		if network == "" || strings.Contains(network, "+") {
			t.Errorf("%s: network %q", p.ID, network)
		}
		if first, ok := networks[p.Plugin.Subnet.String()]; ok && p.Repeats != first {
			t.Errorf("%s and %s share %s", p.ID, first, p.Plugin.Subnet)
		}
		networks[p.Plugin.Subnet.String()] = p.ID
		if p.Plugin.Gateway != lab.Host && p.Plugin.Gateway != lab.Outside {
			t.Errorf("%s: gateway %q", p.ID, p.Plugin.Gateway)
		}
	}
}

// TestProxiedPaths checks that the paths through Docker's user-land proxy, which their notes
// name, have the noise of programs.
func TestProxiedPaths(t *testing.T) {
	found, err := Lookup("docker")
	if err != nil {
		t.Fatal(err)
	}
	var proxied []string
	for _, p := range found[0].Paths {
		if p.ForwardsInUserSpace() != strings.HasPrefix(p.Note, "through Docker's user-land proxy") {
			t.Errorf("%s: forwards in user space %t, note %q", p.ID, p.ForwardsInUserSpace(), p.Note)
		}
		if p.ForwardsInUserSpace() {
			proxied = append(proxied, p.ID)
		}
	}
	if want := []string{"published-port/localhost", "container-to-container/host-ip"}; !slices.Equal(proxied, want) {
		t.Errorf("%v, want %v", proxied, want)
	}
}
