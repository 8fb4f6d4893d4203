// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mustang/internal/datapath/kept"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(contenderVariable); root != "" {
		os.Exit(contender(root))
	}
	code := testkit.CheckLeaks(m)
	if err := kept.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// openTest opens a datapath for a few pods, in which nothing is attached or stored. Earlier tests may have loaded programs.
func openTest(t testing.TB) *Datapath {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	return openSized(t, Options{Root: kept.Root(t)})
}

func openSized(t testing.TB, o Options) *Datapath {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	d, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := d.objects.OpenTables(); err != nil { // tests look into them
		t.Fatal(err)
	}
	return d
}

// pins returns a path of pins.
func pins(d *Datapath, path ...string) string {
	return filepath.Join(append([]string{d.objects.Root(), fmt.Sprintf("v%d", objects.LayoutVersion)}, path...)...)
}

// cookieOf returns the cookie of a network namespace.
func cookieOf(t testing.TB, ns *netns.Namespace) uint64 {
	t.Helper()
	cookie, err := ns.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	return cookie
}

// openers returns the ways to open a datapath.
func openers() map[string]func(Options) (*Datapath, error) {
	return map[string]func(Options) (*Datapath, error){
		"Open":         func(o Options) (*Datapath, error) { return Open(context.Background(), o) },
		"OpenExisting": OpenExisting,
	}
}

// counts returns the counters by name.
func counts(t testing.TB, d *Datapath) map[string]uint64 {
	t.Helper()
	counters, err := d.Flows().Counters()
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]uint64)
	for _, c := range counters {
		m[c.Name] = c.Packets
	}
	return m
}

// settled returns the counters once the packets of connections that have ended are
// through: when they have stood still for a while.
func settled(t testing.TB, d *Datapath) map[string]uint64 {
	t.Helper()
	last := counts(t, d)
	for range 100 {
		time.Sleep(20 * time.Millisecond)
		now := counts(t, d)
		if maps.Equal(now, last) {
			return now
		}
		last = now
	}
	t.Fatal("the counters rise and rise")
	return nil
}

// delta returns what was counted since before, less what was not.
func delta(t testing.TB, d *Datapath, before map[string]uint64) map[string]uint64 {
	t.Helper()
	diff := make(map[string]uint64)
	for name, n := range counts(t, d) {
		if n != before[name] {
			diff[name] = n - before[name]
		}
	}
	return diff
}

// must returns the value of a call, and ends the test if the call failed: must(call())(t).
func must[V any](v V, err error) func(testing.TB) V {
	return func(t testing.TB) V {
		t.Helper()
		succeed(t, err)
		return v
	}
}

// must2 is must for calls with two values.
func must2[V, W any](v V, w W, err error) func(testing.TB) (V, W) {
	return func(t testing.TB) (V, W) {
		t.Helper()
		succeed(t, err)
		return v, w
	}
}

// succeed ends the test if a call failed.
func succeed(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
