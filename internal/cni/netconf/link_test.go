// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"slices"
	"testing"

	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

// TestSelectLink selects a link mode that the kernel supports.
func TestSelectLink(t *testing.T) {
	testkit.RequireRoot(t)
	name, err := SelectLink()
	if err != nil {
		t.Fatal(err)
	}
	mode, err := podlink.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := mode.Probe(); err != nil {
		t.Error(err)
	}
	if !slices.Contains(AutoLinks(), name) || !slices.Contains(Links(), name) {
		t.Errorf("%s is not among %v and %v", name, AutoLinks(), Links())
	}
}
