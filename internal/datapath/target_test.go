// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// TestBadEndpoints names devices that can be no endpoints.
func TestBadEndpoints(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.run(t, "-n PODB link add lone type veth peer name other\n-n PODB addr add 192.168.10.50/32 dev lone")
	n.run(t, "-n PODB link add br9 type bridge\n-n PODB addr add 192.168.10.51/32 dev br9")
	n.run(t, "-n PODA addr flush dev eth0 scope global")
	n.run(t, `
		-n PODB tuntap add tap9 mode tap
		-n PODB tuntap add tun9 mode tun
		-n HOST tuntap add tap9 mode tap`)
	tap := func(a EndpointSpec) EndpointSpec {
		a.Namespace, a.IfName, a.Host = n.pods[1], "tap9", n.host
		return a
	}
	vm := []netip.Addr{netip.MustParseAddr("192.168.10.60")}
	for _, c := range []struct {
		name, want string
		attach     EndpointSpec
		notExist   bool
	}{
		{"no such device", "eth7", EndpointSpec{Namespace: n.pods[0], IfName: "eth7", Host: n.host}, true},
		{"no namespace", "no network namespace", EndpointSpec{IfName: "eth0", Host: n.host}, false},
		{"no address", "no address", n.attachment(0), false},
		{"loopback", `"loopback"`, EndpointSpec{Namespace: n.pods[0], IfName: "lo", Host: n.host}, false},
		{"bridge", `"bridge"`, EndpointSpec{Namespace: n.pods[1], IfName: "br9", Host: n.host}, false},
		{"peer elsewhere", "peer is not in", EndpointSpec{Namespace: n.pods[1], IfName: "lone", Host: n.host}, false},
		{"no other end", "must be given", tap(EndpointSpec{}), false},
		{"host's device missing", "vc", tap(EndpointSpec{HostIfName: "vc"}), true},
		{"host's device of another kind", `"veth"`, tap(EndpointSpec{HostIfName: "va"}), false},
		{"TUN in the pod only", "MAC address of 0 bytes", EndpointSpec{Namespace: n.pods[1], IfName: "tun9", Host: n.host, HostIfName: "tap9"}, false},
		{"a VM without a MAC", "MAC address of 0 bytes", EndpointSpec{Host: n.host, HostIfName: "tap9", Addresses: vm}, false},
		{"a VM without an address", "no address", EndpointSpec{Host: n.host, HostIfName: "tap9", MAC: mac("02")}, false},
		{"segment missing", "br7", EndpointSpec{Namespace: n.pods[1], IfName: "eth0", Host: n.host, Segment: "br7"}, true},
		{"loopback in a segment", `"loopback"`, EndpointSpec{Namespace: n.pods[0], IfName: "lo", Host: n.host, Segment: "va"}, false},
		{"TUN in a segment", "no MAC address", EndpointSpec{Namespace: n.pods[1], IfName: "tun9", Host: n.host, Segment: "va"}, false},
		{"in no host", "peer is not in", EndpointSpec{Namespace: n.pods[1], IfName: "eth0", Host: n.pods[0]}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := d.Endpoints().Put(t.Context(), c.attach)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
			if errors.Is(err, os.ErrNotExist) != c.notExist {
				t.Errorf("error %v: os.ErrNotExist matches %v", err, !c.notExist)
			}
			wantEndpoints(t, d)
			wantLinks(t, d, 0)
		})
	}
}
