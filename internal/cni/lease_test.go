// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/cni/netconf"
	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

// leases are results that the DHCP plugin makes of leases of real servers (RFC 2132, RFC 3442), the routes of the pod,
// and the omitted ones. The router is 10.113.0.1, and the host 10.113.0.2.
var leases = []struct{ name, result, routes, leftOut string }{
	{"option 3", `"ips":[{"address":"10.113.0.50/24","gateway":"10.113.0.1"}],"routes":[{"dst":"0.0.0.0/0",` +
		`"gw":"10.113.0.1"}]`,
		"default via 10.113.0.1 onlink", ""},
	{"two routers", `"ips":[{"address":"10.113.0.50/24","gateway":"10.113.0.1"}],"routes":[{"dst":"0.0.0.0/0",` +
		`"gw":"10.113.0.1"},{"dst":"0.0.0.0/0","gw":"10.113.0.9"}]`,
		"default via 10.113.0.1 onlink", "routes[1].dst: duplicate route to 0.0.0.0/0"},
	{"option 121 with router 0.0.0.0",
		`"ips":[{"address":"10.113.0.50/24"}],"routes":[{"dst":"169.254.169.254/32","scope":253},{"dst":"203.0.113.0/24",` +
			`"gw":"0.0.0.0"},{"dst":"0.0.0.0/0","gw":"10.113.0.1"}]`,
		"169.254.169.254 scope link, 203.0.113.0/24 scope link, default via 10.113.0.1 onlink", ""},
	{"single address with a route to its gateway",
		`"ips":[{"address":"10.113.0.50/32","gateway":"10.113.0.1"}],"routes":[{"dst":"10.113.0.1/32","scope":253},` +
			`{"dst":"0.0.0.0/0","gw":"10.113.0.1"}]`,
		"10.113.0.1 scope link, 10.113.0.2 scope link, default via 10.113.0.1 onlink", ""},
	{"single address with its gateway outside", `"ips":[{"address":"10.113.0.50/32","gateway":"10.113.0.1"}]`,
		"10.113.0.2 scope link, default via 10.113.0.1 onlink", ""},
	{"single address by option 121",
		`"ips":[{"address":"10.113.0.50/32"}],"routes":[{"dst":"10.113.0.1/32","gw":"0.0.0.0"},{"dst":"0.0.0.0/0",` +
			`"gw":"10.113.0.1"}]`,
		"10.113.0.1 scope link, 10.113.0.2 scope link, default via 10.113.0.1 onlink", ""},
	{"a router outside of the subnet",
		`"ips":[{"address":"10.113.0.50/24","gateway":"10.113.0.1"}],"routes":[{"dst":"203.0.113.0/24","gw":"169.254.1.9"}]`,
		"203.0.113.0/24 via 169.254.1.9 onlink, default via 10.113.0.1 onlink", ""},
	{"host bits, the own network, the own address",
		`"ips":[{"address":"10.113.0.50/24","gateway":"10.113.0.1"}],"routes":[{"dst":"203.0.113.9/24","gw":"10.113.0.1"},` +
			`{"dst":"10.113.0.0/24","gw":"0.0.0.0"},{"dst":"192.0.2.0/24","gw":"10.113.0.50"}]`,
		"192.0.2.0/24 scope link, 203.0.113.0/24 via 10.113.0.1 onlink, default via 10.113.0.1 onlink",
		"routes[1].dst: 10.113.0.0/24 is the pods' own network"},
	{"what can't be", `"ips":[{"address":"10.113.0.50/24","gateway":"10.113.0.1"},{"address":"10.113.0.50/24"}],` +
		`"routes":[{"dst":"::/0","gw":"fe80::1"},{"dst":"203.0.113.0/24","gw":"224.0.0.1"},{"dst":"10.9.0.0/16","mtu":9000}]`,
		"default via 10.113.0.1 onlink", "routes[2].mtu: 9000"},
	{"no router", `"ips":[{"address":"10.113.0.50/24","gateway":"0.0.0.0"}],"routes":[{"dst":"203.0.113.0/24",` +
		`"gw":"10.113.0.9"}]`,
		"203.0.113.0/24 via 10.113.0.9 onlink", ""},
}

// TestLeases adds pods with leases: they have the routes, reach addresses beyond a router that the lease names, and
// leave nothing.
func TestLeases(t *testing.T) {
	eachName(t, []string{"macvlan", "bridge"}, newFixture, func(t *testing.T, f *fixture, mode string) {
		dir, path := f.newFakeIPAM()
		beyond := f.routed(routerAddresses)
		device := podlink.MacvlanHostDevice
		if mode == "bridge" {
			device = podlink.DefaultBridge
			testkit.Command(t, f.host, "ip link add mst0 type bridge")
			testkit.Command(t, f.host, "ip link set uplink master mst0")
		}
		config := strings.Replace(string(delegating(mode, `{"type":"`+fakeIPAM+`"}`)), `{"cniVersion"`,
			`{"hostAddresses":["10.113.0.2"],"cniVersion"`, 1)
		for _, row := range leases {
			t.Run(row.name, func(t *testing.T) {
				f := f.in(t)
				f.must(os.WriteFile(path+".result", []byte(`{"cniVersion":"1.1.0",`+row.result+`}`), 0o600))
				p := f.pod("a", []byte(config))
				f.worked(f.runFor(p, "ADD", dir)) // makes what stays
				f.worked(f.runFor(p, "DEL", dir))
				before := f.left()
				said := f.runFor(p, "ADD", dir)
				f.told(p, said)
				got := f.routesOf(p)
				testkit.Check(t, got == row.routes, "routes are %q, want %q", got, row.routes)
				noted := strings.Contains(said.stderr, "note: ")
				testkit.Check(t, noted == (row.leftOut != "") && strings.Contains(said.stderr, row.leftOut),
					"it says %q, want %q", said.stderr, row.leftOut)
				if strings.Contains(row.routes, "default") {
					f.reach(p.Namespace, beyond, beyondAddresses[0].Addr())
					f.reach(beyond, p.Namespace, p.ips()[0])
				}
				// the host lacks a route for such a lease until an administrator adds one
				single := strings.Contains(row.result, `"10.113.0.50/32"`)
				if single {
					testkit.Command(t, f.host, "ip route add 10.113.0.0/24 dev "+device)
				}
				f.reach(p.Namespace, f.host, ownAddresses[0].Addr())
				if single {
					testkit.Command(t, f.host, "ip route del 10.113.0.0/24 dev "+device)
				}
				f.worked(f.runFor(p, "CHECK", dir))
				f.worked(f.runFor(p, "DEL", dir))
				f.same(before, "DEL")
			})
		}
	})
}

// routesOf lists a pod's IPv4 routes that the kernel has not added itself.
func (f *fixture) routesOf(p *pod) string {
	f.t.Helper()
	var routes []string
	for line := range strings.Lines(testkit.Command(f.t, p.Namespace, "ip -4 route show dev "+p.request.IfName)) {
		if !strings.Contains(line, "proto kernel") {
			routes = append(routes, strings.TrimSpace(line))
		}
	}
	slices.Sort(routes)
	return strings.Join(routes, ", ")
}

// FuzzLease makes leases of bytes. Each gives addresses, gateways and routes that package podlink takes, in each kind
// of link mode.
func FuzzLease(f *testing.F) {
	for i := range len(leases) {
		f.Add([]byte{byte(i)})
	}
	for _, seed := range []string{"\x10", "\x10\x00\x00\x02", "\x10\x00\x00\x00\x01", "\x11\x18\x01\x03\x00\x00\x01\x01",
		"\x13\x20\x00\x05\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		lease := fuzzedLease(data)
		result := &types100.Result{}
		err := json.Unmarshal([]byte(lease), result)
		testkit.Require(t, err == nil, "%s: %v", lease, err)
		for _, host := range []string{`"hostAddresses":["10.113.0.2","fd00:113::2"],"link":"macvlan"`, `"link":"veth"`} {
			c := testkit.Must(netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"net","type":"mustang-cni",` + host +
				`,"ipam":{"type":"other"}}`)))(t)
			addresses, routes, err := leaseOf(c, result)
			if slices.Contains(result.IPs, nil) || slices.Contains(result.Routes, nil) {
				testkit.Require(t, err != nil, "%s: taken", lease)
				continue
			}
			testkit.Require(t, err == nil, "%s: %v", lease, err)
			gateways, routers, err := c.HostPrefixes(addresses)
			testkit.Require(t, err == nil, "%s: %v", lease, err)
			for _, router := range routers {
				testkit.Require(t, podlink.IsRouter(router) && !slices.Contains(addrsOf(addresses), router),
					"%s: router %v", lease, router)
			}
			for _, gateway := range gateways {
				testkit.Require(t, podlink.IsRouter(gateway.Addr()) && !gateway.Addr().IsLinkLocalUnicast(),
					"%s: gateway %v", lease, gateway)
			}
			pod, network := podlink.Pod{Addresses: addrsOf(addresses), Routes: routes}, podlink.Network{Gateways: gateways,
				Routers: routers}
			for _, switched := range []bool{true, false} {
				valid := pod
				valid.Routes, _ = pod.UsableRoutes(network, switched)
				err := valid.ValidateRoutes(network, switched)
				testkit.Require(t, err == nil, "%s: %v", lease, err)
			}
		}
	})
}

func fuzzedLease(data []byte) string {
	next := func(of int) int {
		if len(data) == 0 {
			return 0
		}
		b := int(data[0])
		data = data[1:]
		return b % of
	}
	if n := next(len(leases) + 8); n < len(leases) {
		return "{" + leases[n].result + "}"
	}
	hops := []string{"", "10.113.0.1", "0.0.0.0", "10.113.0.50", "169.254.169.1", "192.0.2.1", "255.255.255.255",
		"10.113.0.255", "224.0.0.1", "127.0.0.1",
		"::", "fe80::1", "fd00:113::1", "fd00:113::50", "ff02::1", "::1", "::ffff:10.113.0.1"}
	hop := func() string {
		if h := hops[next(len(hops))]; h != "" {
			return fmt.Sprintf("%q", h)
		}
		return "null"
	}
	address := func(of string, bits, all int) string {
		if b := bits + next(all-bits-6); b < all-8 {
			bits = b
		} else {
			bits = all
		}
		return fmt.Sprintf(`{"address":"%s/%d","gateway":%s}`, of, bits, hop())
	}
	ips := []string{address("10.113.0.50", 8, 32)}
	switch next(3) {
	case 1:
		ips = append(ips, address("fd00:113::50", 48, 128))
	case 2:
		ips = append(ips, "null")
	}
	routes := [][]string{nil, {"null"}}[next(2)]
	for len(data) > 0 && len(routes) < 100 {
		dst := netip.MustParseAddr([]string{"0.0.0.0", "10.113.0.50", "10.113.0.0", "203.0.113.7", "224.0.0.0",
			"255.255.255.255", "::", "fd00:9::7", "fe80::"}[next(9)])
		more := []string{"", `,"scope":253`, `,"scope":0`, `,"scope":200`, `,"table":254`, `,"mtu":1400`, `,"mtu":-1`,
			`,"advmss":70000`, `,"priority":-1`, `,"priority":1024`}
		routes = append(routes, fmt.Sprintf(`{"dst":"%s/%d","gw":%s%s}`, dst, next(dst.BitLen()+1), hop(),
			more[next(len(more))]))
	}
	return `{"ips":[` + strings.Join(ips, ",") + `],"routes":[` + strings.Join(routes, ",") + `]}`
}

// TestForgedLeases adds pods with leases from a server that tries to attract the host's packets for others: the host's
// routes stay, with any lease.
func TestForgedLeases(t *testing.T) {
	eachName(t, []string{"macvlan", "bridge"}, newFixture, func(t *testing.T, f *fixture, mode string) {
		dir, path := f.newFakeIPAM()
		f.routed(routerAddresses)
		if mode == "bridge" {
			testkit.Command(t, f.host, "ip link add mst0 type bridge")
		}
		config := strings.Replace(string(delegating(mode, `{"type":"`+fakeIPAM+`"}`)), `{"cniVersion"`,
			`{"hostAddresses":["10.113.0.2"],"cniVersion"`, 1)
		lease := func(name, address string) *pod {
			f.must(os.WriteFile(path+".result", []byte(`{"cniVersion":"1.1.0","ips":[{"address":"`+address+
				`","gateway":"10.113.0.1"}]}`), 0o600))
			return f.pod(name, []byte(config))
		}
		refused := func(addresses ...string) {
			for _, address := range addresses {
				f.failed(f.runFor(lease("a", address), "ADD", dir), types.ErrInternal, "want a prefix of")
			}
		}
		refused("10.113.0.60/0", "10.113.0.60/1", "192.0.2.2/0")
		f.worked(f.runFor(lease("first", "10.113.0.60/24"), "ADD", dir))
		refused("10.113.0.60/8", "10.113.0.60/23")
		routes := testkit.Command(t, f.host, "ip -4 route")
		for _, address := range []string{"192.0.2.2/32", "198.51.100.53/32", "10.113.0.1/32"} {
			p := lease("a", address)
			f.worked(f.runFor(p, "ADD", dir))
			got := testkit.Command(t, f.host, "ip -4 route")
			testkit.Check(t, got == routes, "lease %s: routes of the host are\n%swant\n%s", address, got, routes)
			f.worked(f.runFor(p, "DEL", dir))
		}
	})
}
