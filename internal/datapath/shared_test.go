// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// TestShared opens a shared datapath again: it is the same, with this build's programs, until it is removed.
func TestShared(t *testing.T) {
	n := routed(t)
	o := Options{Root: filepath.Join(testkit.BPFFS(t), "root")}
	var s Shared
	if _, err := s.OpenExisting(o); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("OpenExisting without: %v", err)
	}
	var before *Datapath
	for _, name := range []string{"first", "removed"} {
		d, err := s.Open(t.Context(), o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d == before {
			t.Fatalf("%s: what was removed is open still", name)
		}
		must(d.Guards().Put(t.Context(), n.attachment(1)))(t)
		want := programPins(t, d)
		for _, pin := range want { // of another build
			_, rest, _ := strings.Cut(pin, "-")
			succeed(t, os.Rename(filepath.Join(pins(d, "progs"), pin), filepath.Join(pins(d, "progs"), "0000-"+rest)))
		}
		if again, err := s.Open(t.Context(), o); again != d || err != nil {
			t.Errorf("%s: again: %p, %v, want %p", name, again, err, d)
		}
		if got := programPins(t, d); !slices.Equal(got, want) {
			t.Errorf("%s: programs %v, want %v", name, got, want)
		}
		if again, err := s.OpenExisting(o); again != d || err != nil {
			t.Errorf("%s: OpenExisting: %p, %v, want %p", name, again, err, d)
		}
		succeed(t, Remove(t.Context(), o.Root))
		before = d
		if _, err := s.OpenExisting(o); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: OpenExisting of what was removed: %v", name, err)
		}
	}
}
