// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// onEachSide runs a test with pods on veths and on macvlans.
func onEachSide(t *testing.T, test func(t *testing.T, n network, d *Datapath)) {
	for name, make := range map[string]func(testing.TB) network{"veth": routed, "macvlan": slaves} {
		t.Run(name, func(t *testing.T) { test(t, make(t), openTest(t)) })
	}
}

func (n network) attachment(pod int) Attach {
	return Attach{Namespace: n.pods[pod], IfName: "eth0", Host: n.host}
}

func wantEndpoints(t *testing.T, d *Datapath, want ...string) []Endpoint {
	t.Helper()
	endpoints, err := d.Endpoints()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range endpoints {
		got = append(got, e.IP.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("endpoints %v, want %v", got, want)
	}
	return endpoints
}

// wantLinks counts the pinned attachments.
func wantLinks(t *testing.T, d *Datapath, want int) {
	t.Helper()
	entries, err := os.ReadDir(d.layout.links())
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != want {
		t.Errorf("links %v, want %d", entries, want)
	}
}

func TestEndpoints(t *testing.T) {
	onEachSide(t, func(t *testing.T, n network, d *Datapath) {
		n.attachBoth(t, d)
		endpoints := wantEndpoints(t, d, podA4, podA6, podB4, podB6)
		pod, err := n.pods[0].Device("eth0")
		if err != nil {
			t.Fatal(err)
		}
		where, name := n.pods[0], "eth0"
		if pod.Kind == "veth" {
			where, name = n.host, "va"
		}
		at, err := where.Device(name)
		if err != nil {
			t.Fatal(err)
		}
		node := at
		if pod.Kind == "macvlan" {
			if node, err = n.host.Device("mst-host"); err != nil {
				t.Fatal(err)
			}
		}
		want := Endpoint{ID: 1, IP: netip.MustParseAddr(podA4), Host: pod.Kind == "veth", IfIndex: at.Index,
			PodMAC: pod.MAC, NodeMAC: node.MAC, segment: uint32(pod.ParentIndex)}
		if want.Host {
			want.segment = 0
		}
		if !reflect.DeepEqual(endpoints[0], want) {
			t.Errorf("endpoint %+v, want %+v", endpoints[0], want)
		}
		wantLinks(t, d, 4)
		// The same once more changes nothing.
		if again, change, err := d.AddEndpoint(n.attachment(0)); err != nil || change != Unchanged || !reflect.DeepEqual(again, endpoints[:2]) {
			t.Errorf("AddEndpoint again = %v, %v, %v", again, change, err)
		}
		// An address comes, and one goes.
		n.run(t, "-n PODA addr add 192.168.10.99/32 dev eth0\n-n PODA addr del "+prefixOf(pod, podA6)+" dev eth0")
		if _, change, err := d.AddEndpoint(n.attachment(0)); err != nil || change != Updated {
			t.Errorf("AddEndpoint = %v, %v; want an update", change, err)
		}
		wantEndpoints(t, d, podA4, "192.168.10.99", podB4, podB6)
		// A program that someone removed comes back.
		if err := d.detach(1); err != nil {
			t.Fatal(err)
		}
		if _, change, err := d.AddEndpoint(n.attachment(0)); err != nil || change != Updated {
			t.Errorf("AddEndpoint = %v, %v; want the programs attached again", change, err)
		}
		wantLinks(t, d, 4)
		testDelete(t, n, d)
	})
}

func prefixOf(d nl.Device, addr string) string {
	for _, p := range d.Addrs {
		if p.Addr().String() == addr {
			return p.String()
		}
	}
	return ""
}

// testDelete deletes by each name that an endpoint has.
func testDelete(t *testing.T, n network, d *Datapath) {
	for name, remove := range map[string]func() error{
		"device":  func() error { return d.DeleteEndpointDevice(n.attachment(0)) },
		"address": func() error { return d.DeleteEndpointIP(netip.MustParseAddr(podA4)) },
		"id": func() error {
			endpoints, err := d.Endpoints()
			for _, e := range endpoints {
				if e.IP.String() == podA4 {
					return d.DeleteEndpoint(e.ID)
				}
			}
			return errors.Join(err, d.DeleteEndpoint(4711))
		},
	} {
		if err := remove(); err != nil {
			t.Errorf("delete by %s: %v", name, err)
		}
		wantEndpoints(t, d, podB4, podB6)
		wantLinks(t, d, 2)
		if err := remove(); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("delete by %s once more: error %v", name, err)
		}
		if _, _, err := d.AddEndpoint(n.attachment(0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.DeleteEndpoint(2); err != nil {
		t.Fatal(err)
	}
	wantEndpoints(t, d, podA4, "192.168.10.99")
}

// TestReplaced has a pod that is gone without being deleted, and another with its address.
func TestReplaced(t *testing.T) {
	onEachSide(t, func(t *testing.T, n network, d *Datapath) {
		n.attachBoth(t, d)
		n.run(t, "-n PODB addr add "+podA4+"/32 dev eth0")
		var conflict *ConflictError
		if _, _, err := d.AddEndpoint(n.attachment(1)); !errors.As(err, &conflict) {
			t.Errorf("an address that is in use: error %v", err)
		}
		wantEndpoints(t, d, podA4, podA6, podB4, podB6)
		n.run(t, "-n PODA link del eth0")
		if _, change, err := d.AddEndpoint(n.attachment(1)); err != nil || change != Updated {
			t.Errorf("AddEndpoint = %v, %v", change, err)
		}
		wantEndpoints(t, d, podA4, podB4, podB6)
		wantLinks(t, d, 2)
	})
}

// TestUndone fails in the middle of AddEndpoint.
func TestUndone(t *testing.T) {
	onEachSide(t, func(t *testing.T, n network, d *Datapath) {
		s := hostSide
		if t.Name() == "TestUndone/macvlan" {
			s = podSide
		}
		if err := os.Remove(d.layout.programPin(digest(), hook{s, mustangProgToPod})); err != nil {
			t.Fatal(err)
		}
		if _, _, err := d.AddEndpoint(n.attachment(0)); err == nil {
			t.Fatal("no error although a program is missing")
		}
		wantEndpoints(t, d)
		wantLinks(t, d, 0)
	})
	t.Run("table full", func(t *testing.T) {
		n, root := routed(t), testkit.BPFFS(t)
		d := openSized(t, Options{Root: root + "/root", MaxEndpoints: 1, MaxConnections: 64})
		var full *FullError
		if _, _, err := d.AddEndpoint(n.attachment(0)); !errors.As(err, &full) {
			t.Errorf("error %v, want that the table is full", err)
		}
		wantEndpoints(t, d)
		wantLinks(t, d, 0)
	})
}

// TestAddTogether adds both pods from several goroutines.
func TestAddTogether(t *testing.T) {
	n, d := routed(t), openTest(t)
	var group errgroup.Group
	for i := range 6 {
		group.Go(func() error {
			_, _, err := d.AddEndpoint(n.attachment(i % 2))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if endpoints, err := d.Endpoints(); err != nil || len(endpoints) != 4 {
		t.Errorf("endpoints %v, %v", endpoints, err)
	}
	wantLinks(t, d, 4)
}
