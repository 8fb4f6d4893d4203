// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"net/netip"
	"testing"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// TestMasquerade reaches a machine outside, which knows no way to pods: it sees the
// host. Within the host pods are seen as themselves.
func TestMasquerade(t *testing.T) {
	for _, mode := range crashModes {
		t.Run(mode, func(t *testing.T) {
			f := newFixture(t)
			p := f.added("a", network("net", mode, `,"services":"off","masquerade":true`))
			other := f.added("b", network("net", mode, `,"services":"off","masquerade":true`))
			for i, outside := range outsideAddresses {
				for _, test := range []struct {
					at   *nl.Namespace
					addr netip.Addr
					seen netip.Addr
				}{
					{f.outside, outside.Addr(), hostAddresses[i].Addr()},
					{other.Namespace, other.ips()[i], p.ips()[i]},
				} {
					server := testkit.Echo(t, test.at, "tcp", netip.AddrPortFrom(test.addr, 0).String())
					seen, err := testkit.RoundTrip(t, p.Namespace, "tcp", server.String(), []byte("x"))
					if err != nil || seen.Addr() != test.seen {
						t.Errorf("%s sees the pod as %s, want %s: %v", test.addr, seen, test.seen, err)
					}
				}
			}
			f.must(f.check(p))
		})
	}
}

// TestMAC gives a pod the MAC address that the runtime asks for, and refuses one
// that no device can have.
func TestMAC(t *testing.T) {
	for _, mode := range crashModes {
		t.Run(mode, func(t *testing.T) {
			f := newFixture(t)
			const want = "02:00:00:00:00:07"
			p := f.added("a", network("net", mode, `,"services":"off","runtimeConfig":{"mac":"`+want+`"}`))
			device, err := p.Device("eth0")
			f.must(err)
			if device.MAC.String() != want {
				t.Errorf("the device has %v, want %s", device.MAC, want)
			}
			f.must(f.check(p))
			before := f.left()
			bad := f.pod("b", network("net", mode, `,"services":"off","runtimeConfig":{"mac":"ff:ff:ff:ff:ff:ff"}`))
			if err := f.add(bad); err == nil {
				t.Error("a pod has the broadcast address as its MAC address")
			}
			f.same(before, "ADD that failed")
		})
	}
}
