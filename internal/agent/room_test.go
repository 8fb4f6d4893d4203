// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
	"mustang/internal/testkit"
)

// little is a datapath with little room for services, and what an agent wants there.
type little struct {
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
	l := &little{newServiceSet("here"), d.Services(), map[manifest.Name]byte{}}
	size, err := d.Services().Room()
	if err != nil {
		t.Fatal(err)
	}
	l.room = newRoom(size)
	return l
}

// put has a Service stand for frontends of so many backends and source ranges each, or for nothing.
func (l *little) put(t *testing.T, name string, frontends, backends, ranges int) {
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
func (l *little) has(t *testing.T, when, namespace string, frontends, backends int) {
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

// TestRoomOfServices lets one namespace ask for more backends than there is room for: the Services of others come and change as before. Its own that are too
// many refuse connections until there is room for all.
func TestRoomOfServices(t *testing.T) {
	l := newLittle(t, objects.Sizes{Backends: 4096})
	l.put(t, "victim/web", 1, 1, 0)
	for i := range 3 {
		l.put(t, fmt.Sprint("tenant/big", i), 1, 1000, 0)
	}
	l.has(t, "while there is room", "tenant", 3, 3000)
	l.put(t, "tenant/big3", 1, 1000, 0)
	l.has(t, "with too many", "tenant", 4, 2000)
	l.put(t, "victim/web", 1, 3, 0)
	l.put(t, "victim/new", 2, 100, 0)
	l.has(t, "with too many", "victim", 3, 203)
	l.put(t, "tenant/big0", 1, 999, 0)
	l.has(t, "after a change", "tenant", 4, 1999)
	l.put(t, "tenant/big1", 0, 0, 0)
	l.has(t, "as long as there is no room for all", "tenant", 3, 1999)
	l.put(t, "tenant/big2", 1, 300, 0)
	l.has(t, "when there is room for all", "tenant", 3, 2299)
	l.has(t, "in the end", "victim", 3, 203)
}

// TestRoomOfFrontends is the same for frontends, which whoever asks for too many loses, and for source ranges.
func TestRoomOfFrontends(t *testing.T) {
	l := newLittle(t, objects.Sizes{Services: 1024, SourceRanges: 1024})
	for i := range 4 {
		l.put(t, fmt.Sprint("tenant/many", i), 250, 1, 0)
	}
	l.has(t, "with too many frontends", "tenant", 500, 500)
	l.put(t, "victim/web", 3, 1, 10)
	l.has(t, "with too many frontends", "victim", 3, 3)
	l.put(t, "other/ranges", 1, 1, 900)
	l.has(t, "with too many source ranges", "other", 1, 0)
	l.has(t, "with too many source ranges", "victim", 3, 3)
}
