// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"mustang/internal/testkit"
)

// TestLookup finds each mode by its name, and names them all for another.
func TestLookup(t *testing.T) {
	for _, mode := range Modes() {
		found, err := Lookup(mode.Name())
		if err != nil || found != mode {
			t.Errorf("Lookup(%q) = %v, %v", mode.Name(), found, err)
		}
	}
	_, err := Lookup("token-ring")
	var unknown *UnknownModeError
	if !errors.As(err, &unknown) || unknown.Name != "token-ring" || len(unknown.Known) != len(Modes()) {
		t.Errorf("error is %v", err)
	}
	for _, mode := range Modes() {
		if !strings.Contains(err.Error(), mode.Name()) {
			t.Errorf("error %q does not name %s", err, mode.Name())
		}
	}
}

// TestProbe tells a missing kernel feature from other failures, and leaves no
// namespace.
func TestProbe(t *testing.T) {
	testkit.RequireRoot(t)
	err := probe("fancy", needsVeth(), requirement{
		feature: "fancy devices", module: "fancy", since: "99.1",
		try: func(s side) error {
			return s.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs("probe2"), LinkType: "mst-fancy"})
		},
	})
	var unsupported *UnsupportedError
	if !errors.As(err, &unsupported) {
		t.Fatalf("error is %v", err)
	}
	for _, part := range []string{"fancy devices", "module fancy", "Linux 99.1", kernelRelease()} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not contain %q", err, part)
		}
	}
	err = probe("broken", requirement{feature: "x", try: func(side) error { return fs.ErrPermission }})
	if errors.As(err, &unsupported) || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("error is %v", err)
	}
}

// loadModules has the kernel load what the modes are made of, which may bring
// settings to all namespaces.
func loadModules(t *testing.T) {
	t.Helper()
	for _, mode := range Modes() {
		if err := mode.Probe(); err != nil {
			t.Log(err)
		}
	}
}

// TestProbeModes has every mode say what is missing, if something is, and from
// which Linux on it is there. The root namespace stays as it was.
func TestProbeModes(t *testing.T) {
	testkit.RequireRoot(t)
	since := map[string]string{
		"ipvlan-l2": "3.19", "ipvlan-l3": "3.19", "ipvlan-l3s": "4.9", "netkit": "6.7", "netkit-l2": "6.7",
	}
	loadModules(t)
	before := testkit.RootSnapshot(t)
	for _, mode := range Modes() {
		err := mode.Probe()
		if err == nil {
			continue
		}
		var unsupported *UnsupportedError
		if !errors.As(err, &unsupported) {
			t.Errorf("mode %s: error is %v", mode.Name(), err)
			continue
		}
		if unsupported.Mode != mode.Name() || unsupported.Module == "" || unsupported.Feature == "" {
			t.Errorf("mode %s: error is %+v", mode.Name(), unsupported)
		}
		if want, ok := since[mode.Name()]; ok && !strings.Contains(err.Error(), "since Linux "+want+")") {
			t.Errorf("error %q does not name Linux %s", err, want)
		}
	}
	if got := testkit.RootSnapshot(t); got != before {
		t.Errorf("the root namespace changed:\n%s", difference(before, got))
	}
}
