// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func onEachLink(t *testing.T, test func(t *testing.T, n network, d *Datapath)) {
	onLinks(t, "veth, macvlan, segment, ipvlan-l2, ipvlan-l3, netkit, netkit-l2, tap, tun",
		func(t *testing.T, m linkMode) {
			test(t, m.make(t), openTest(t))
		})
}

func (n network) unplug(t *testing.T, pod int) {
	t.Helper()
	if n.relayed[pod] {
		n.run(t, "-n HOST link del "+hostDevices()[pod])
		return
	}
	n.run(t, "-n "+[2]string{"PODA", "PODB"}[pod]+" link del eth0")
}

func (n network) wanted(t *testing.T) Endpoint {
	t.Helper()
	device := func(ns *netns.Namespace, name string) rtnl.Device { return must(rtnl.In(ns).Device(name))(t) }
	pod := device(n.pods[0], "eth0")
	netns := must(n.pods[0].Cookie())(t)
	e := Endpoint{ID: 1, IP: netip.MustParseAddr(podA4), netns: netns, IfIndex: pod.Index,
		PodMAC: append(pod.MAC, make([]byte, 6-len(pod.MAC))...)}
	var node rtnl.Device
	switch {
	case n.segment != "":
		node = device(n.host, n.segment)
		e.segment = uint32(node.Index)
	case pod.Kind == "macvlan" || pod.Kind == "ipvlan":
		node = device(n.host, map[string]string{"macvlan": "mst-host", "ipvlan": podlink.IPVLANHostDevice}[pod.Kind])
		e.segment = uint32(pod.ParentIndex)
	default:
		node = device(n.host, "va")
		e.Host, e.IfIndex, e.flags = true, node.Index, objects.EndpointOnHost|objects.EndpointEgress
		if pod.Kind != "tun" {
			e.flags |= objects.EndpointPeer
		} else if len(pod.MAC) == 0 {
			e.flags |= objects.EndpointL3
		}
	}
	e.NodeMAC = append(node.MAC, make([]byte, 6-len(node.MAC))...)
	return e
}

func (n network) attachment(pod int) EndpointSpec {
	a := EndpointSpec{Namespace: n.pods[pod], IfName: "eth0", Host: n.host, Segment: n.segment}
	if n.relayed[pod] {
		a.HostIfName = hostDevices()[pod]
	}
	return a
}

func wantPut(t testing.TB, d *Datapath, spec EndpointSpec, want Change) []Endpoint {
	t.Helper()
	rows, change := must2(d.Endpoints().Put(t.Context(), spec))(t)
	equal(t, change, want, "Put")
	return rows
}

func wantEndpoints(t *testing.T, d *Datapath, want ...string) []Endpoint {
	t.Helper()
	endpoints := must(d.Endpoints().List(t.Context()))(t)
	var got []string
	for _, e := range endpoints {
		got = append(got, e.IP.String())
		one, err := d.Endpoints().Get(t.Context(), e.IP)
		testkit.Check(t, err == nil && reflect.DeepEqual(one, e), "Get(%s) = %+v, %v; want %+v", e.IP, one, err, e)
	}
	failsAs[*NotFoundError](t, errOf(d.Endpoints().Get(t.Context(), netip.MustParseAddr("203.0.113.1"))),
		"Get of an address without an endpoint")
	failIf(t, !slices.Equal(got, want), "endpoints %v, want %v", got, want)
	return endpoints
}

func wantLinks(t *testing.T, d *Datapath, want int) {
	t.Helper()
	entries := must(os.ReadDir(pins(d, "links")))(t)
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { // shared by all pods of a parent
		return want > 0 && (strings.HasSuffix(e.Name(), "-outer_guard") || strings.HasSuffix(e.Name(), "-outer_seal"))
	})
	failIf(t, len(entries) != want, "links %v, want %d", entries, want)
}

func TestEndpoints(t *testing.T) {
	onEachLink(t, func(t *testing.T, n network, d *Datapath) {
		n.attachBoth(t, d)
		endpoints := wantEndpoints(t, d, podA4, podA6, podB4, podB6)
		pod := must(rtnl.In(n.pods[0]).Device("eth0"))(t)
		want := n.wanted(t)
		failIf(t, !reflect.DeepEqual(endpoints[0], want), "endpoint %+v, want %+v", endpoints[0], want)
		wantLinks(t, d, 4)
		// The same once more changes nothing.
		again := wantPut(t, d, n.attachment(0), Unchanged)
		failIf(t, !reflect.DeepEqual(again, endpoints[:2]), "Put again = %v", again)
		// An address comes, and one goes.
		n.run(t, "-n PODA addr add 192.168.10.99/32 dev eth0\n-n PODA addr del "+prefixOf(pod, podA6)+" dev eth0")
		wantPut(t, d, n.attachment(0), Updated)
		wantEndpoints(t, d, podA4, "192.168.10.99", podB4, podB6)
		// A program that someone removed comes back.
		for _, h := range objects.EndpointHooks() {
			succeed(t, d.objects.Detach(objects.Link{Hook: h, ID: 1}))
		}
		wantPut(t, d, n.attachment(0), Updated)
		wantLinks(t, d, 4)
		testDelete(t, n, d)
		testReplaced(t, n, d)
	})
}

func prefixOf(d rtnl.Device, addr string) string {
	for _, p := range d.Addrs {
		if p.Addr().String() == addr {
			return p.String()
		}
	}
	return ""
}

func testDelete(t *testing.T, n network, d *Datapath) {
	deletePod := func(i int) error {
		return d.Endpoints().DeletePod(t.Context(), cookieOf(t, n.pods[i]), []netip.Addr{netip.MustParseAddr(podA4)})
	}
	wantNotFound(t, deletePod(1)) // which has other addresses
	wantLinks(t, d, 4)
	for name, remove := range map[string]func() error{
		"device":  func() error { return d.Endpoints().DeleteDevice(t.Context(), n.attachment(0)) },
		"address": func() error { return d.Endpoints().DeleteIP(t.Context(), netip.MustParseAddr(podA4)) },
		"pod":     func() error { return deletePod(0) },
		"id": func() error {
			endpoints, err := d.Endpoints().List(t.Context())
			for _, e := range endpoints {
				if e.IP.String() == podA4 {
					return d.Endpoints().Delete(t.Context(), e.ID)
				}
			}
			return errors.Join(err, d.Endpoints().Delete(t.Context(), 4711))
		},
	} {
		noError(t, remove(), "delete by %s", name)
		wantEndpoints(t, d, podB4, podB6)
		wantLinks(t, d, 2)
		failsWith(t, remove(), os.ErrNotExist, "delete by %s once more", name)
		must2(d.Endpoints().Put(t.Context(), n.attachment(0)))(t)
	}
	succeed(t, d.Endpoints().Delete(t.Context(), 2))
	wantEndpoints(t, d, podA4, "192.168.10.99")
}

// testReplaced has a pod that is gone without being deleted, and another with its address.
func testReplaced(t *testing.T, n network, d *Datapath) {
	wantPut(t, d, n.attachment(1), Added)
	pod := must(rtnl.In(n.pods[0]).Device("eth0"))(t)
	if pod.Kind == "ipvlan" { // whose driver refuses an address that another device has
		n.run(t, "-n PODA addr del "+prefixOf(pod, podA4)+" dev eth0")
	}
	n.run(t, "-n PODB addr add "+podA4+"/32 dev eth0")
	failsAs[*ConflictError](t, errOf2(d.Endpoints().Put(t.Context(), n.attachment(1))), "an address that is in use")
	wantEndpoints(t, d, podA4, "192.168.10.99", podB4, podB6)
	n.unplug(t, 0)
	wantPut(t, d, n.attachment(1), Updated)
	wantEndpoints(t, d, podA4, podB4, podB6)
	wantLinks(t, d, 2)
}

// TestIndexReused has a pod that is gone without being deleted, and another whose device has its index.
func TestIndexReused(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.attachBoth(t, d)
	n.unplug(t, 0)
	gone := wantEndpoints(t, d, podA4, podA6, podB4, podB6)[0]
	n.run(t, `
		-n HOST link del vb
		-n HOST link add vb index `+strconv.Itoa(gone.IfIndex)+` type veth peer name eth0 netns PODB
		-n PODB addr add `+podB4+`/32 dev eth0`)
	must2(d.Endpoints().Put(t.Context(), n.attachment(1)))(t)
	wantEndpoints(t, d, podB4)
	wantLinks(t, d, 2)
}

// TestUndone fails in the middle of AddEndpoint.
func TestUndone(t *testing.T) {
	onLinks(t, "veth, macvlan, netkit, tun", func(t *testing.T, m linkMode) { // each attach point
		n, d := m.make(t), openTest(t)
		attach := n.attachment(0)
		endpoints, _ := must2(d.Endpoints().Put(t.Context(), attach))(t)
		succeed(t, d.Endpoints().Delete(t.Context(), endpoints[0].ID))
		// In the place of the second program there is something else.
		place := must(findTarget(attach))(t)
		defer place.Close()
		pinned, err := filepath.Glob(pins(d, "progs", "*-"+objects.Hook{Point: place.Point, Program: "to_pod"}.String()))
		testkit.Require(t, err == nil && len(pinned) == 1, "%v, %v", pinned, err)
		path, aside := pinned[0], filepath.Join(d.objects.Root(), "aside")
		other := must(d.objects.Metrics.Map.Clone())(t)
		defer other.Close()
		succeed(t, errors.Join(os.Rename(path, aside), other.Pin(path)))
		defer func() { succeed(t, errors.Join(os.Remove(path), os.Rename(aside, path))) }()
		_, _, err = d.Endpoints().Put(t.Context(), attach)
		testkit.Require(t, err != nil, "no error although a program is missing")
		wantEndpoints(t, d)
		wantLinks(t, d, 0)
	})
	t.Run("table full", func(t *testing.T) {
		n, d := routed(t), openFresh(t, objects.Sizes{Endpoints: 1, Connections: 64})
		failsAs[*objects.FullError](t, errOf2(d.Endpoints().Put(t.Context(), n.attachment(0))))
		wantEndpoints(t, d)
		wantLinks(t, d, 0)
	})
}

// TestApart leaves out the addresses that a pod may use in addition to its own.
func TestApart(t *testing.T) {
	for _, c := range []struct{ addresses, allowed, want string }{
		{"10.0.0.1 fd00::1", "", "10.0.0.1 fd00::1"},
		{"10.0.0.1 10.0.0.200", "10.0.0.200/32", "10.0.0.1"},
		{"10.0.0.200", "10.0.0.200/32", ""},
		{"10.0.0.1 10.0.0.201 fd00::1 fd00:200::5", "10.0.0.200/30 fd00:200::/64", "10.0.0.1 fd00::1"},
		{"10.0.0.1", "10.0.0.0/8", "10.0.0.1"},
		{"10.0.0.1 fd00::1", "0.0.0.0/0", "fd00::1 10.0.0.1"},
		{"10.0.0.1 10.0.0.200", "10.0.0.0/8 10.0.0.200/32", "10.0.0.1"},
	} {
		t.Run(c.addresses+" allowed "+c.allowed, func(t *testing.T) {
			var addresses []netip.Addr
			for _, a := range strings.Fields(c.addresses) {
				addresses = append(addresses, netip.MustParseAddr(a))
			}
			var allowed []netip.Prefix
			for _, p := range strings.Fields(c.allowed) {
				prefix := netip.MustParsePrefix(p)
				back := rows.DecodePrefix(rows.EncodeAddr(prefix.Addr()), rows.EncodeMask(prefix))
				testkit.Check(t, back == prefix, "prefix %s is %s after the row", prefix, back)
				allowed = append(allowed, prefix)
			}
			got := strings.Trim(fmt.Sprint(apart(addresses, allowed)), "[]")
			testkit.Check(t, got == c.want, "%q, want %q", got, c.want)
		})
	}
}
