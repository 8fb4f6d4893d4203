// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

// withRoutes is a configuration with routes and more keys.
func withRoutes(routes, more string) string {
	return strings.Replace(withIPAM(more), `]]}`, `]],"routes":[`+routes+`]}`, 1)
}

// TestParseRoutes parses each key of a route.
func TestParseRoutes(t *testing.T) {
	c := testkit.Must(Parse([]byte(withRoutes(`{"dst":"0.0.0.0/0"},{"dst":"10.9.0.0/16","gw":"10.88.0.9","mtu":1400,"advmss":1000,"priority":4294967295}`, ``))))(t)
	want := []podlink.Route{
		{Dst: netip.MustParsePrefix("0.0.0.0/0")},
		{Dst: netip.MustParsePrefix("10.9.0.0/16"), Via: netip.MustParseAddr("10.88.0.9"), MTU: 1400, AdvMSS: 1000, Priority: 4294967295},
	}
	if !reflect.DeepEqual(c.IPAM.Routes, want) || c.NoDefaultRoute {
		t.Errorf("got %+v", c)
	}
	if c, err := Parse([]byte(withIPAM(`, "defaultRoute":false`))); err != nil || !c.NoDefaultRoute {
		t.Errorf("got %+v, %v", c, err)
	}
}

// TestParseRouteErrors checks the errors of routes. What podlink refuses has rows in its own tests.
func TestParseRouteErrors(t *testing.T) {
	const invalid, unknown, decoding = types.ErrInvalidNetworkConfig, types.ErrUnsupportedField, types.ErrDecodingFailure
	checkErrors(t, []parseError{
		{withRoutes(`7`, ``), decoding, "ipam.routes[0]: want a JSON object, got 7"},
		{withRoutes(`{"gw":"10.88.0.2"}`, ``), invalid, "ipam.routes[0].dst: missing"},
		{withRoutes(`{"dst":"10.9.0.0"}`, ``), invalid, `ipam.routes[0].dst: want a prefix like 10.9.0.0/16, got "10.9.0.0"`},
		{withRoutes(`{"dst":"10.9.0.1/16"}`, ``), invalid, "ipam.routes[0].dst: invalid network prefix 10.9.0.1/16: want one like 10.9.0.0/16"},
		{withRoutes(`{"dst":"fd00:9::/48"}`, ``), invalid, "ipam.routes[0].dst: fd00:9::/48: the pod lacks an address of its family"},
		{withRoutes(`{"dst":"10.9.0.0/16","gw":"here"}`, ``), invalid, `ipam.routes[0].gw: want an address, got "here"`},
		{withRoutes(`{"dst":"10.9.0.0/16","gw":"10.88.0.9"}`, `, "link":"veth"`), invalid, "ipam.routes[0].gw: 10.88.0.9 is unreachable: the pod's only"},
		{withRoutes(`{"dst":"10.9.0.0/16","mtu":1401}`, `, "mtu":1400`), invalid, "ipam.routes[0].mtu: 1401"},
		{withRoutes(`{"dst":"10.9.0.0/16","mtu":"big"}`, ``), invalid, `ipam.routes[0].mtu: want a number of bytes, got "big"`},
		{withRoutes(`{"dst":"10.9.0.0/16","advmss":65496}`, ``), invalid, "ipam.routes[0].advmss: 65496"},
		{withRoutes(`{"dst":"10.9.0.0/16","priority":4294967296}`, ``), invalid, "ipam.routes[0].priority: 4294967296"},
		{withRoutes(`{"dst":"10.9.0.0/16","table":100}`, ``), unknown, "ipam.routes[0].table: 100"},
		{withRoutes(`{"dst":"10.9.0.0/16","scope":253}`, ``), unknown, "ipam.routes[0].scope: 253"},
		{withRoutes(`{"dst":"10.9.0.0/16"},{"dst":"0.0.0.0/0"}`, `, "defaultRoute":false`), invalid, "ipam.routes[1].dst: 0.0.0.0/0 is a default route"},
		{withIPAM(`, "defaultRoute":"no"`), invalid, "defaultRoute: want true or false"},
		{`{"name":"pods","chained":true,"defaultRoute":false}`, invalid, "defaultRoute: a chained"},
	})
}
