// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net/netip"
	"testing"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// TestOneFamily plugs in pods of one family, where the other is switched off.
func TestOneFamily(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		for i, name := range []string{"IPv4", "IPv6"} {
			t.Run(name, func(t *testing.T) {
				f := newHost(t, mode)
				f.network.Gateways = f.network.Gateways[i : i+1]
				pods := []Pod{f.newPod(t, 0), f.newPod(t, 1)}
				for j := range pods {
					pods[j].Addresses = pods[j].Addresses[i : i+1]
				}
				for _, ns := range []*nl.Namespace{f.network.Host, pods[0].Namespace, pods[1].Namespace} {
					if err := ns.SetSysctl("net/ipv6/conf/default/disable_ipv6", "1"); err != nil {
						t.Fatal(err)
					}
				}
				if err := mode.Setup(f.network); err != nil {
					t.Fatal(err)
				}
				f.create(t, pods[0])
				f.create(t, pods[1])
				if err := mode.Check(f.network, pods[0]); err != nil {
					t.Error(err)
				}
				echoOnce(t, f)
			})
		}
	})
}

// TestNoGateways has modes that route do without addresses of the host's own.
func TestNoGateways(t *testing.T) {
	for _, name := range allRouted() {
		t.Run(name, func(t *testing.T) { testNoGateways(t, newHostOf(t, name)) })
	}
}

func testNoGateways(t *testing.T, f *fixture) {
	f.network.Gateways = nil
	withHandle(t, f.network.Host, func(host side) error {
		uplink, err := host.link(uplinkName)
		if err != nil {
			return err
		}
		// What the host's own packets come from.
		_, err = host.addGateways(uplink, []netip.Prefix{
			netip.MustParsePrefix("10.9.9.1/24"), netip.MustParsePrefix("fd00:9::1/64"),
		})
		return err
	})
	if err := f.mode.Setup(f.network); err != nil {
		t.Fatal(err)
	}
	f.create(t, f.newPod(t, 0))
	f.create(t, f.newPod(t, 1))
	echoOnce(t, f)
	for _, addr := range f.pods[0].Addresses {
		server := testkit.Echo(t, f.pods[0].Namespace, "tcp", netip.AddrPortFrom(addr, 0).String())
		if _, err := testkit.RoundTrip(t, f.network.Host, "tcp", server.String(), []byte("hello")); err != nil {
			t.Error(err)
		}
	}
}
