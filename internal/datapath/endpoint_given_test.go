// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"mustang/internal/datapath/device"
	"mustang/internal/datapath/objects"
	"mustang/internal/policy"
	"mustang/internal/rtnl"
)

// TestKeeps puts an endpoint once more, after root of the pod has changed its device: it keeps what is not given, each part for
// itself. An allowed address is no endpoint.
func TestKeeps(t *testing.T) {
	onEachLink(t, func(t *testing.T, n network, d *Datapath) {
		allowed := []netip.Prefix{netip.PrefixFrom(vip4, 32), netip.MustParsePrefix("fd00:200::/64")}
		n.run(t, "-n PODA addr add "+vip4.String()+"/32 dev eth0")
		pod := policy.Pod{Namespace: "shop", Name: "web", Labels: map[string]string{"app": "web"}}
		first := n.attachment(0)
		first.Allowed, first.Pod, first.DHCP = allowed, &pod, true
		must2(d.Endpoints().Put(t.Context(), first))(t)
		was, guard := wantEndpoints(t, d, podA4, podA6), onlySender(t, d)
		n.run(t, "-n PODA addr add 8.8.8.8/32 dev eth0")
		n.run(t, "-n PODA addr add fe80::1/64 dev eth0 nodad")
		if dev, err := rtnl.In(n.pods[0]).Device("eth0"); err != nil {
			t.Fatal(err)
		} else if len(dev.MAC) > 0 && dev.Kind != "ipvlan" && dev.Kind != "netkit" && dev.Kind != "tun" {
			n.run(t, "-n PODA link set eth0 address 02:00:00:00:00:66")
		}
		put := func(given device.Given, edit func(*EndpointSpec), want Change) {
			t.Helper()
			spec := n.attachment(0)
			spec.Given, spec.Pod = &given, &policy.Pod{Namespace: "default"}
			edit(&spec)
			if _, change, err := d.Endpoints().Put(t.Context(), spec); err != nil || change != want {
				t.Errorf("Put given %+v = %v, %v; want %v", given, change, err, want)
			}
		}
		put(device.Given{}, func(*EndpointSpec) {}, Unchanged)
		if now := wantEndpoints(t, d, podA4, podA6); !reflect.DeepEqual(now, was) || onlySender(t, d) != guard {
			row := onlySender(t, d)
			t.Errorf("endpoints %+v, want %+v; MAC %x, link-local %x, %d prefixes, flags %d", now, was, row.Mac, row.LinkLocal.Bytes, row.Prefixes, row.Flags)
		}
		labels := map[string]string{"app": "db"}
		put(device.Given{Labels: true}, func(s *EndpointSpec) { s.Pod.Labels = labels }, Updated)
		s, err := d.Policies().Snapshot()
		s.Pods = slices.DeleteFunc(s.Pods, func(p policy.Pod) bool { return p.Addresses[0].IsLinkLocalUnicast() }) // the same pods
		if err != nil || len(s.Pods) != 1 {
			t.Fatal(s.Pods, err)
		}
		if p := s.Pods[0]; p.Namespace != "shop" || p.Name != "web" || !reflect.DeepEqual(p.Labels, labels) {
			t.Errorf("policies know of pod %+v", p)
		}
		put(device.Given{Guard: true}, func(s *EndpointSpec) { s.Unguarded = true }, Updated)
		put(device.Given{Allowed: true}, func(*EndpointSpec) {}, Updated)
		if row := onlySender(t, d); row.Prefixes != 0 || row.Flags&objects.SenderUnguarded == 0 {
			t.Errorf("%d prefixes, flags %d; want none, unguarded", row.Prefixes, row.Flags)
		}
		put(device.Given{Addresses: true}, func(s *EndpointSpec) {
			s.Addresses = []netip.Addr{netip.MustParseAddr(podA4), netip.MustParseAddr("192.168.10.77")}
		}, Updated)
		wantEndpoints(t, d, podA4, "192.168.10.77")
	})
}

// onlySender returns the row of the only device that the source guard knows.
func onlySender(t *testing.T, d *Datapath) (sender objects.Sender) {
	t.Helper()
	for row, err := range d.objects.Senders.All() {
		if err != nil {
			t.Fatal(err)
		}
		if row.Key.Ifindex != 0 {
			sender = row.Value
		}
	}
	return sender
}
