// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"testing"

	"golang.org/x/sync/errgroup"

	"mustang/internal/lb"
	"mustang/internal/testkit"
)

// service makes a service of text.
func service(p lb.Protocol, frontend string, backends ...string) lb.Service {
	s := lb.Service{Frontend: netip.MustParseAddrPort(frontend), Protocol: p}
	for _, backend := range backends {
		s.Backends = append(s.Backends, netip.MustParseAddrPort(backend))
	}
	return s
}

// wantServices compares the services, less their ids.
func wantServices(t *testing.T, d *Datapath, want ...lb.Service) {
	t.Helper()
	got, err := d.Services()
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		got[i].ID = 0
	}
	if len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
		t.Errorf("services\n%v, want\n%v", got, want)
	}
}

// wantSlots counts the rows of the backend table.
func wantSlots(t *testing.T, d *Datapath, want int) {
	t.Helper()
	n := 0
	var key mustangBackendKey
	var value mustangBackend
	for entries := d.maps.Backends.Iterate(); entries.Next(&key, &value); {
		n++
	}
	if n != want {
		t.Errorf("%d backend slots, want %d", n, want)
	}
}

// TestServices puts and deletes, one step after another.
func TestServices(t *testing.T) {
	d := openTest(t)
	one := service(lb.TCP, "10.96.0.1:80", "192.168.10.10:8080", "192.168.10.11:8080")
	fewer := service(lb.TCP, "10.96.0.1:80", "192.168.10.11:8080")
	six := service(lb.Any, "[fd00:96::1]:80", "[fd00:10::a]:8080")
	udp := service(lb.UDP, "10.96.0.1:80", "192.168.10.10:53")
	conflict := func(err error) bool { var c *ConflictError; return errors.As(err, &c) }
	missing := func(err error) bool {
		var n *NotFoundError
		return errors.As(err, &n) && errors.Is(err, os.ErrNotExist)
	}
	put := func(s lb.Service, want Change, wantID uint32) func(t *testing.T) {
		return func(t *testing.T) {
			if change, id, err := d.PutService(s); err != nil || change != want || id != wantID {
				t.Errorf("PutService = %v, %d, %v; want %v, %d", change, id, err, want, wantID)
			}
		}
	}
	refuse := func(s lb.Service, want func(error) bool) func(t *testing.T) {
		return func(t *testing.T) {
			if _, _, err := d.PutService(s); !want(err) {
				t.Errorf("PutService: error %v", err)
			}
		}
	}
	remove := func(frontend string, p lb.Protocol, want func(error) bool) func(t *testing.T) {
		return func(t *testing.T) {
			if err := d.DeleteService(netip.MustParseAddrPort(frontend), p); !want(err) {
				t.Errorf("DeleteService: error %v", err)
			}
		}
	}
	fine := func(err error) bool { return err == nil }
	for _, step := range []struct {
		name  string
		do    func(*testing.T)
		want  []lb.Service
		slots int
	}{
		{"nothing yet", func(*testing.T) {}, nil, 0},
		{"add", put(one, Added, 1), []lb.Service{one}, 2},
		{"again", put(one, Unchanged, 1), []lb.Service{one}, 2},
		{"in another order", put(service(lb.TCP, "10.96.0.1:80", "192.168.10.11:8080", "192.168.10.10:8080"), Unchanged, 1), []lb.Service{one}, 2},
		{"add any", put(six, Added, 2), []lb.Service{one, six}, 3},
		{"add the other protocol", put(udp, Added, 3), []lb.Service{one, six, udp}, 4},
		{"update", put(fewer, Updated, 1), []lb.Service{fewer, six, udp}, 3},
		{"any over one", refuse(service(lb.Any, "10.96.0.1:80", "192.168.10.10:1"), conflict), []lb.Service{fewer, six, udp}, 3},
		{"one over any", refuse(service(lb.TCP, "[fd00:96::1]:80", "[fd00:10::a]:1"), conflict), []lb.Service{fewer, six, udp}, 3},
		{"invalid", refuse(service(lb.TCP, "10.96.0.9:80", "[fd00:10::a]:1"), func(err error) bool { return err != nil }), []lb.Service{fewer, six, udp}, 3},
		{"delete a part of any", remove("[fd00:96::1]:80", lb.TCP, missing), []lb.Service{fewer, six, udp}, 3},
		{"delete another port", remove("10.96.0.1:81", lb.TCP, missing), []lb.Service{fewer, six, udp}, 3},
		{"delete any", remove("[fd00:96::1]:80", lb.Any, fine), []lb.Service{fewer, udp}, 2},
		{"delete it again", remove("[fd00:96::1]:80", lb.Any, missing), []lb.Service{fewer, udp}, 2},
		{"ids are not used again", put(six, Added, 4), []lb.Service{fewer, udp, six}, 3},
		{"delete both protocols", remove("10.96.0.1:80", lb.Any, fine), []lb.Service{six}, 1},
	} {
		t.Run(step.name, func(t *testing.T) {
			step.do(t)
			wantServices(t, d, step.want...)
			wantSlots(t, d, step.slots)
		})
	}
}

// TestGoroutines adds and changes services from several goroutines, each with a datapath of its own over one root.
func TestGoroutines(t *testing.T) {
	d := openTest(t)
	var group errgroup.Group
	for worker := range 4 {
		group.Go(func() error {
			own, err := Open(Options{Root: d.layout.root})
			if err != nil {
				return err
			}
			return errors.Join(addServices(own, worker), own.Close())
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	wantWorkers(t, d, 4)
}

const perWorker = 8

// addServices is what each goroutine or process does: services of its own, and one that all fight for.
func addServices(d *Datapath, worker int) error {
	for i := range perWorker {
		own := fmt.Sprintf("10.96.%d.%d:80", worker, i)
		if _, _, err := d.PutService(service(lb.TCP, own, "192.168.10.10:8080", "192.168.10.11:8080")); err != nil {
			return err
		}
		backend := fmt.Sprintf("192.168.%d.%d:8080", worker, i)
		if _, _, err := d.PutService(service(lb.TCP, "10.96.99.99:80", backend)); err != nil {
			return err
		}
	}
	return nil
}

func wantWorkers(t *testing.T, d *Datapath, workers int) {
	t.Helper()
	services, err := d.Services()
	if err != nil {
		t.Fatal(err)
	}
	ids := make(map[uint32]bool)
	for _, s := range services {
		ids[s.ID] = true
	}
	if want := workers*perWorker + 1; len(services) != want || len(ids) != want {
		t.Errorf("%d services with %d ids, want %d", len(services), len(ids), want)
	}
	wantSlots(t, d, 2*workers*perWorker+1)
}

// TestReopen closes and opens: what was there is there, and the ids go on.
func TestReopen(t *testing.T) {
	d := openTest(t)
	one := service(lb.UDP, "10.96.0.1:53", "192.168.10.10:53")
	if _, _, err := d.PutService(one); err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func(Options) (*Datapath, error){"Open": Open, "OpenExisting": OpenExisting} {
		again, err := open(Options{Root: d.layout.root, MaxServices: 1})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		wantServices(t, again, one)
		if change, id, err := again.PutService(one); err != nil || change != Unchanged || id != 1 {
			t.Errorf("%s: PutService = %v, %d, %v", name, change, id, err)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRemove takes everything away, twice.
// TestRemoveBesideOthers has a root that others have pinned something in.
func TestRemoveBesideOthers(t *testing.T) {
	root := testkit.BPFFS(t)
	openSized(t, Options{Root: root, MaxConnections: 64})
	if err := os.Mkdir(root+"/others", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Remove(root); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(root)
	if err != nil || len(entries) != 1 || entries[0].Name() != "others" {
		t.Errorf("left: %v, %v; want only what is others'", entries, err)
	}
}

func TestRemove(t *testing.T) {
	root := testkit.BPFFS(t) + "/root"
	d := openSized(t, Options{Root: root, MaxConnections: 64})
	for range 2 {
		if err := Remove(root); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the root is there still: %v", err)
	}
	if _, err := OpenExisting(Options{Root: root}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("OpenExisting: error %v", err)
	}
	if _, _, err := d.PutService(service(lb.TCP, "10.96.0.1:80", "192.168.10.10:80")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("PutService after Remove: error %v", err)
	}
}
