// SPDX-License-Identifier: Apache-2.0

package suites_test

import (
	"slices"
	"strings"
	"testing"

	"mustang/internal/bench/suites"
)

// TestProxiedPaths checks that the paths through Docker's user-land proxy, which their notes
// name, have the noise of programs.
func TestProxiedPaths(t *testing.T) {
	found, err := suites.Lookup("docker")
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
