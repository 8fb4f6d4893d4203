// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// inOVS changes the database of Open vSwitch.
func inOVS(change func(s ovsSwitch) error) func(*testing.T, *fixture) {
	return func(t *testing.T, f *fixture) { withSwitch(t, f.network, change) }
}

// allOVS are the modes of Open vSwitch.
func allOVS() []string { return []string{"ovs-veth", "ovs-internal"} }

// deviationsOfOVS are those of the modes of Open vSwitch.
func deviationsOfOVS() []deviation {
	veth := []string{"ovs-veth"}
	return []deviation{
		{"no port", allOVS(), inOVS(func(s ovsSwitch) error { return s.deletePort("msta") }),
			`port "msta" is missing in the database`},
		{"port of another bridge", allOVS(), func(_ *testing.T, f *fixture) {
			f.network.Bridge = sharedBridge
		}, `port "msta" of Open vSwitch is not on bridge "shared"`},
		{"no bridge", allOVS(), inOVS(func(s ovsSwitch) error {
			bridge, err := s.bridge(DefaultBridge)
			if err != nil {
				return err
			}
			return s.deleteBridge(bridge)
		}), `bridge "mst0" is missing in the database`},
		{"bridge waits for a controller", allOVS(), inOVS(func(s ovsSwitch) error {
			return s.apply(ovsdbOp{
				"op": "update", "table": "Bridge", "where": where(is("name", DefaultBridge)), "row": ovsdbRow{"fail_mode": "secure"},
			})
		}), "fail_mode secure"},
		{"port does not work", allOVS(), inOVS(func(s ovsSwitch) error {
			_, err := s.transact(ovsdbOp{
				"op": "update", "table": "Interface", "where": where(is("name", "msta")), "row": ovsdbRow{"error": "it is broken"},
			})
			return err
		}), `port "msta" of Open vSwitch: it is broken`},
		{"bridge is down", allOVS(), inHost(DefaultBridge, down), `device "mst0" in`},
		{"gateway", allOVS(), inHost(DefaultBridge, removeAddr("fd00:10::1/64")), "lacks address fd00:10::1/64"},
		{"port is down", veth, inHost("msta", down), `device "msta" in`},
		{"port has IPv6", veth, setSysctl(true, "net/ipv6/conf/msta/disable_ipv6", "0"), "msta/disable_ipv6 in"},
		{"port answers ARP", veth, setSysctl(true, "net/ipv4/conf/msta/arp_ignore", "0"), "msta/arp_ignore in"},
	}
}

// TestOVSSetupFails has Setup fail, and compares the host before and after.
func TestOVSSetupFails(t *testing.T) {
	rows := []struct {
		name    string
		arrange func(s *situation)
		message string
	}{
		{"no Open vSwitch", func(s *situation) { s.f.network.OVSDB = "" }, "no Open vSwitch"},
		{"no database", func(s *situation) { s.f.network.OVSDB = "/nonexistent/db.sock" }, "/nonexistent/db.sock"},
		{"bridge's name is taken", func(s *situation) { s.f.network.Bridge = uplinkName }, `device "eth0" in`},
		{"bridge's name is a port's", func(s *situation) {
			withSwitch(s.t, s.f.network, func(sw ovsSwitch) error {
				bridge, err := sw.bridge(sharedBridge)
				if err != nil {
					return err
				}
				_, err = sw.transact(append(insertPort(ovsdbRow{"name": "absent"}), ovsdbOp{
					"op": "mutate", "table": "Bridge", "where": where(is("_uuid", uuid(bridge.UUID.first()))),
					"mutations": []any{[]any{"ports", "insert", named("port")}},
				})...)
				return err
			})
			s.f.network.Bridge = "absent"
		}, "constraint violation"},
		{"bridge's name is too long", func(s *situation) { s.f.network.Bridge = "sixteen-letters-" }, "more than"},
		{"MTU too large", func(s *situation) { s.f.network.MTU = 70000 }, "MTU 70000"},
		{"no gateways", func(s *situation) { s.f.network.Gateways = nil }, "no gateways"},
		{"two gateways of a family", func(s *situation) { s.f.network.Gateways = append(s.f.network.Gateways, s.f.network.Gateways[0]) },
			"second one of its family"},
	}
	testkit.RequireRoot(t)
	for _, mode := range ovsModes() {
		testkit.RequireMode(t, mode.Probe())
		mode = shareHost(t, mode)
		for _, row := range rows {
			t.Run(mode.Name()+"/"+row.name, func(t *testing.T) {
				f := newHost(t, mode)
				row.arrange(&situation{t: t, f: f})
				before := describe(t, f.network.Host)
				if err := f.mode.Setup(f.network); err == nil || !strings.Contains(err.Error(), row.message) {
					t.Errorf("error is %v, wanted: %s", err, row.message)
				}
				if got := describe(t, f.network.Host); got != before {
					t.Errorf("left behind:\n%s", difference(before, got))
				}
			})
		}
	}
}
