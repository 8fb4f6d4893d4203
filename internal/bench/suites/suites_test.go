// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"slices"
	"strings"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/testkit"
)

// TestSuitesNameExistingRows checks that IDs are unique, and that pairs name existing rows.
func TestSuitesNameExistingRows(t *testing.T) {
	for _, s := range List() {
		ids := map[string]bool{}
		for _, p := range s.Paths {
			testkit.Check(t, !ids[p.ID], "%s: %s appears twice", s.Name, p.ID)
			ids[p.ID] = true
		}
		again := 0
		for _, p := range s.Pairs {
			testkit.Check(t, ids[p.Numerator] && ids[p.Denominator],
				"%s: pair %q of %q and %q, at least one of them unknown", s.Name, p.Name, p.Numerator, p.Denominator)
			if p.AA {
				again++
			}
		}
		testkit.Check(t, again != 0, "%s: no A/A comparison", s.Name)
		testkit.Check(t, len(s.Workloads) != 0, "%s: no workloads", s.Name)
	}
	_, err := Lookup("nope")
	testkit.Check(t, err != nil, "Lookup found suite nope")
	all, err := Lookup(All)
	testkit.Check(t, err == nil && len(all) == len(List()), "all: %d suites, %v", len(all), err)
}

// TestCNIConfigurations checks that each path of suite cni has a valid network name, and a network of its own.
func TestCNIConfigurations(t *testing.T) {
	networks := map[string]string{}
	for _, p := range cni().Paths {
		network := p.Plugin.Network
		testkit.Check(t, network != "" && !strings.Contains(network, "+"), "%s: network %q", p.ID, network)
		first, ok := networks[p.Plugin.Subnet.String()]
		testkit.Check(t, !ok || p.Repeats == first, "%s and %s share %s", p.ID, first, p.Plugin.Subnet)
		networks[p.Plugin.Subnet.String()] = p.ID
		testkit.Check(t, p.Plugin.Gateway == lab.Host || p.Plugin.Gateway == lab.Outside,
			"%s: gateway %q", p.ID, p.Plugin.Gateway)
	}
}

// TestProxiedPaths checks that the paths through Docker's user-land proxy, which their notes
// name, have the noise of programs.
func TestProxiedPaths(t *testing.T) {
	found, err := Lookup("docker")
	testkit.Succeed(t, err)
	var proxied []string
	for _, p := range found[0].Paths {
		if p.ForwardsInUserSpace() != strings.HasPrefix(p.Note, "through Docker's user-land proxy") {
			t.Errorf("%s: forwards in user space %t, note %q", p.ID, p.ForwardsInUserSpace(), p.Note)
		}
		if p.ForwardsInUserSpace() {
			proxied = append(proxied, p.ID)
		}
	}
	want := []string{"published-port/localhost", "container-to-container/host-ip"}
	testkit.Check(t, slices.Equal(proxied, want), "%v, want %v", proxied, want)
}
