// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
	"mustang/internal/testkit"
)

// little is a datapath with little room for services, and what an agent wants there.
type little struct {
	*testing.T
	*serviceSet
	datapath.Services
	at map[manifest.Name]byte
}

func newLittle(t *testing.T, sizes objects.Sizes) *little {
	t.Helper()
	testkit.RequireRoot(t)
	d, err := datapath.Open(t.Context(), datapath.Options{Root: filepath.Join(testkit.BPFFS(t), "mustang"), Sizes: sizes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	l := &little{t, newServiceSet("here"), d.Services(), map[manifest.Name]byte{}}
	size, err := d.Services().Room()
	if err != nil {
		t.Fatal(err)
	}
	l.room = newRoom(size)
	return l
}

// put has a Service stand for frontends of so many backends and source ranges each, or for nothing.
func (l *little) put(name string, frontends, backends, ranges int) {
	t := l.T
	t.Helper()
	namespace, one, _ := strings.Cut(name, "/")
	n := manifest.Name{Namespace: namespace, Name: one}
	if l.at[n] == 0 {
		l.at[n] = byte(len(l.at) + 1)
	}
	var set manifest.Set
	for i := range frontends {
		s := service.Service{Frontend: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, l.at[n], byte(i >> 8)}), uint16(i%256+1)), Protocol: service.TCP}
		for k := range backends {
			s.Backends = append(s.Backends, service.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, l.at[n], byte(k >> 8), byte(k)}), 80)})
		}
		for k := range ranges {
			s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, l.at[n], byte(k >> 8), byte(k)}), 32))
		}
		set.Services = append(set.Services, s)
	}
	c, _, lacking := l.merge([]looked{{name: n, set: set}}, quiet())
	if failed := c.write(t.Context(), l.Services, l.wanted); len(failed) > 0 {
		t.Fatalf("%s: %v", name, failed.err())
	}
	for _, err := range lacking {
		if room := (*RoomError)(nil); !errors.As(err, &room) || !isRefused(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// has checks how many frontends and backends a namespace has in the tables.
func (l *little) has(when, namespace string, frontends, backends int) {
	t := l.T
	t.Helper()
	all, err := l.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	had := [2]int{}
	for _, s := range all {
		if l.wanted.holder[s.Key()].Namespace == namespace {
			had[0]++
			had[1] += len(s.Backends)
		}
	}
	if had != [2]int{frontends, backends} {
		t.Errorf("%s: %s has %d frontends, %d backends, want %d, %d", when, namespace, had[0], had[1], frontends, backends)
	}
}

// later lets the time pass for which Services go without what there was no room for.
func (l *little) later() {
	for n, at := range l.room.since {
		l.room.since[n] = at.Add(-holdRoom)
	}
}

// TestRoomOfServices lets one namespace ask for more backends than there is room for: the Services of others come and change as before. Its own have a
// part of their backends, until there is room for all, for a minute at least.
func TestRoomOfServices(t *testing.T) {
	l := newLittle(t, objects.Sizes{Backends: 4096})
	l.put("victim/web", 1, 1, 0)
	for i := range 3 {
		l.put(fmt.Sprint("tenant/big", i), 1, 1000, 0)
	}
	l.has("while there is room", "tenant", 3, 3000)
	l.put("tenant/big3", 1, 1000, 0)
	l.put("tenant/small", 2, 5, 0)
	l.has("with too many", "tenant", 6, 4*640+10)
	l.put("victim/web", 1, 3, 0)
	l.put("victim/new", 2, 100, 0)
	l.has("with too many", "victim", 3, 203)
	l.put("tenant/big0", 1, 999, 0)
	l.has("after a change", "tenant", 6, 4*640+10)
	l.put("tenant/big1", 0, 0, 0)
	l.has("within a minute", "tenant", 5, 3*640+10)
	if !l.room.held {
		t.Error("nobody waits for more")
	}
	l.later()
	l.put("tenant/big2", 1, 800, 0)
	l.has("after a minute", "tenant", 5, 2799+10)
	l.has("after a minute", "victim", 3, 203)
	if l.room.held || len(l.room.shares)+len(l.room.since) > 0 {
		t.Errorf("there are %+v", l.room)
	}
}

// TestRoomOfFrontends is the same for frontends, which are not served then, and for source ranges, without which nobody is let in.
func TestRoomOfFrontends(t *testing.T) {
	l := newLittle(t, objects.Sizes{Services: 1024, SourceRanges: 1024})
	for i := range 4 {
		l.put(fmt.Sprint("tenant/many", i), 250, 1, 0)
	}
	l.has("with too many frontends", "tenant", 750, 750)
	l.put("victim/web", 3, 1, 10)
	l.has("with too many frontends", "victim", 3, 3)
	l.put("other/ranges", 1, 1, 900)
	l.has("with too many source ranges", "other", 1, 0)
	l.has("with too many source ranges", "victim", 3, 3)
	l.has("with too many source ranges", "tenant", 750, 750)
}

// TestFairRoom divides the rows of backends between namespaces, and says the same whatever was before.
func TestFairRoom(t *testing.T) {
	ask := func(r *room, all map[string]int) {
		for name, n := range all {
			namespace, one, _ := strings.Cut(name, "/")
			set := []service.Service{{Frontend: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: service.TCP, Backends: make([]service.Backend, n)}}
			if n == 0 {
				set = nil
			}
			r.note(manifest.Name{Namespace: namespace, Name: one}, set)
		}
		r.divide(time.Now().Add(-time.Hour))
		r.divide(time.Now())
	}
	for _, test := range []struct {
		asks map[string]int
		want string
	}{
		{map[string]int{"a/x": 4000, "b/x": 4000, "c/x": 4000}, "map[]"},
		{map[string]int{"a/x": 6000, "b/x": 5000, "c/x": 4000}, "map[a/x:3584 b/x:3584 c/x:3584]"},
		{map[string]int{"a/x": 6000, "b/x": 3000, "b/y": 3000, "c/x": 1000}, "map[a/x:5120 b/x:2560 b/y:2560]"},
		{map[string]int{"a/x": 9000, "b/x": 1000, "b/y": 1000, "b/z": 1000, "c/x": 500}, "map[a/x:8192]"},
	} {
		for _, before := range []map[string]int{nil, {"a/x": 12000}, {"d/x": 15000, "d/y": 10}} {
			r := newRoom(rows.Counts{Backends: 16000})
			ask(r, before)
			for name := range before {
				if _, ok := test.asks[name]; !ok {
					ask(r, map[string]int{name: 0})
				}
			}
			ask(r, test.asks)
			got := map[string]int{}
			for n, s := range r.shares {
				got[n.String()] = s.backends
			}
			if fmt.Sprint(got) != test.want {
				t.Errorf("%v after %v: %v, want %s", test.asks, before, got, test.want)
			}
		}
	}
}

// TestNothingOfPart has a Service with a part of its backends ask for none, or few, within a minute: it has what it asks for.
func TestNothingOfPart(t *testing.T) {
	l := newLittle(t, objects.Sizes{Backends: 4096})
	l.put("tenant/big", 1, 4000, 0)
	l.has("with too many", "tenant", 1, 2560)
	l.put("tenant/big", 1, 0, 0)
	l.has("with none", "tenant", 1, 0)
	l.put("tenant/big", 1, 4001, 0)
	l.put("tenant/big", 1, 20, 0)
	l.has("with few", "tenant", 1, 20)
	if len(l.room.shares) > 0 {
		t.Errorf("there are %+v", l.room.shares)
	}
}

// TestPartOfMoreFrontends has a Service with a part of its backends get more frontends: all of them have their part, and others have room.
func TestPartOfMoreFrontends(t *testing.T) {
	const limit = 10240
	l := newLittle(t, objects.Sizes{Backends: 16384})
	for frontends := 4; frontends <= 8; frontends++ {
		l.put("tenant/x", frontends, 3500, 0)
		l.has("with too many", "tenant", frontends, (limit+frontends-1)/frontends*frontends)
	}
	l.put("victim/web", 1, 300, 0)
	l.has("with too many", "victim", 1, 300)
}

// BenchmarkDivide divides too few rows between the Services of one and of many namespaces.
func BenchmarkDivide(b *testing.B) {
	for _, namespaces := range []int{1, 5_000} {
		b.Run(fmt.Sprint(namespaces, " namespaces"), func(b *testing.B) {
			r := newRoom(rows.Counts{Services: 131_072, Backends: 524_288, Blocks: 262_144, SourceRanges: 65_536})
			for i := range 100_000 {
				at := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
				r.note(manifest.Name{Namespace: fmt.Sprint("n", i%namespaces), Name: fmt.Sprint("s", i)}, []service.Service{
					{Frontend: netip.AddrPortFrom(at, 80), Protocol: service.TCP}, {Frontend: netip.AddrPortFrom(at, 443), Protocol: service.TCP},
				})
			}
			for b.Loop() {
				r.noted = true
				r.divide(time.Now())
			}
		})
	}
}
