// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// The pods' network of these tests has a router of its own, which is the machine outside, and a machine beyond that.
var (
	routerAddresses = []netip.Prefix{netip.MustParsePrefix("10.113.0.1/24"), netip.MustParsePrefix("fd00:113::1/64")}
	ownAddresses    = []netip.Prefix{netip.MustParsePrefix("10.113.0.2/24"), netip.MustParsePrefix("fd00:113::2/64")}
	parentAddresses = []netip.Prefix{netip.MustParsePrefix("10.113.0.200/24"), netip.MustParsePrefix("fd00:113::200/64")}
	beyondAddresses = []netip.Prefix{netip.MustParsePrefix("198.51.100.2/24"), netip.MustParsePrefix("2001:db8:2::2/64")}
	beyondGateways  = []netip.Prefix{netip.MustParsePrefix("198.51.100.1/24"), netip.MustParsePrefix("2001:db8:2::1/64")}
)

// routed makes the machine outside the router of the pod network.
func (f *fixture) routed(routers []netip.Prefix) (beyond *netns.Namespace) {
	f.t.Helper()
	beyond = testkit.Namespace(f.t, "beyond")
	f.must(rtnl.AddVeth(rtnl.VethEnd{Namespace: f.outside, Name: "in"}, rtnl.VethEnd{Namespace: beyond,
		Name: "wire"}, 1500))
	f.must(rtnl.In(f.outside).Configure("far", rtnl.DeviceConfig{Addresses: routers, Up: true}))
	f.must(rtnl.In(f.outside).Configure("in", rtnl.DeviceConfig{Addresses: beyondGateways, Up: true}))
	f.must(rtnl.In(beyond).Configure("wire", rtnl.DeviceConfig{Addresses: beyondAddresses, Up: true}))
	f.must(rtnl.In(beyond).AddDefaultRoutes("wire", []netip.Addr{beyondGateways[0].Addr(), beyondGateways[1].Addr()}))
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		f.must(rtnl.In(f.outside).SetSysctl(key, "1"))
	}
	return beyond
}

func withRouter(mode, more string) []byte {
	return network("net", mode, `,"hostAddresses":["10.113.0.2","fd00:113::2"]`+more)
}

var distant = network("other", "veth", `,"services":"both"`) // another network of pods on the host

// hostDevice is the host's own device in the pod network.
func hostDevice(mode string) string {
	return map[string]string{"macvlan": podlink.MacvlanHostDevice, "ipvlan-l2": podlink.IPVLANHostDevice,
		"bridge": podlink.DefaultBridge}[mode]
}

// TestRouter has another machine as the gateway: pods reach addresses beyond it with their own addresses, and the host
// and each other as usual. Only the router has its address. The uplink is without or with an address of the pods'
// network, or is a port of the pods' bridge.
func TestRouter(t *testing.T) {
	for _, row := range []struct{ mode, uplink string }{
		{"macvlan", "other network"}, {"macvlan", "same network"}, {"ipvlan-l2", "same network"}, {"bridge", "port"},
	} {
		t.Run(row.mode+"/"+strings.ReplaceAll(row.uplink, " ", "-"), func(t *testing.T) {
			t.Parallel()
			requireLink(t, row.mode)
			f := newSocketFixture(t)
			beyond := f.routed(routerAddresses)
			switch row.uplink {
			case "same network":
				f.must(rtnl.In(f.host).Configure("uplink", rtnl.DeviceConfig{Addresses: parentAddresses, Up: true}))
			case "port":
				testkit.Command(t, f.host, "ip link add mst0 type bridge")
				testkit.Command(t, f.host, "ip link set uplink master mst0")
			}
			config := withRouter(row.mode, `,"services":"both"`)
			for _, c := range [][]byte{config, distant} {
				f.must(f.del(f.added("first", c)))
			}
			before, routes := f.left(), f.routesBy(row.mode)
			a, b := f.added("a", config), f.added("b", config)
			f.throughRouter(a, beyond)
			f.onNetwork(a, b)
			f.elsewhere(row.mode)
			for _, p := range []*pod{a, b} {
				f.must(f.check(p))
			}
			testkit.Command(t, f.host, "ip addr add 10.113.0.1/32 dev lo")
			f.oneLine(f.check(a), "address 10.113.0.1 of a router other than the host")
			testkit.Command(t, f.host, "ip addr del 10.113.0.1/32 dev lo")
			f.onlyRouter(a, hostDevice(row.mode))
			f.must(os.Remove(f.plugin.records().Path("net", b.request.owner()))) // DEL does not need it
			for _, p := range []*pod{a, b} {
				f.must(f.del(p))
			}
			f.dropServices()
			f.same(before, "DEL")
			left := f.routesBy(row.mode)
			testkit.Check(t, left == routes, "routes before:\n%safter:\n%s", routes, left)
		})
	}
}

func (f *fixture) routesBy(mode string) string {
	return testkit.Command(f.t, f.host, "ip route show dev "+hostDevice(mode)) +
		testkit.Command(f.t, f.host, "ip -6 route show dev "+hostDevice(mode))
}

// throughRouter sends traffic to and from the network behind the router.
func (f *fixture) throughRouter(p *pod, beyond *netns.Namespace) {
	f.t.Helper()
	for i, ip := range p.ips() {
		testkit.Check(f.t, gateway(p, i) == routerAddresses[i].Addr() &&
			p.result.Routes[i].GW.String() == routerAddresses[i].Addr().String(),
			"the gateway is not %v: %s", routerAddresses[i], text(f.t, p.result))
		server := testkit.Echo(f.t, beyond, "tcp", netip.AddrPortFrom(beyondAddresses[i].Addr(), 0).String())
		seen, err := testkit.RoundTrip(f.t, p.Namespace, "tcp", server.String(), make([]byte, 5000))
		testkit.Check(f.t, err == nil && seen.Addr() == ip, "what is beyond the router sees %s as %v: %v", ip, seen, err)
		f.reach(beyond, p.Namespace, ip)
	}
}

// onNetwork sends traffic between pods and host, by address and by service.
func (f *fixture) onNetwork(a, b *pod) {
	f.t.Helper()
	for i, ip := range a.ips() {
		f.reach(b.Namespace, a.Namespace, ip)
		f.reach(f.host, a.Namespace, ip)
		f.reach(a.Namespace, f.host, ownAddresses[i].Addr())
		f.reach(f.outside, a.Namespace, ip)
		service := f.service([]string{"10.96.0.9:80", "[fd00:96::9]:80"}[i], "tcp", a, ip)
		f.calls(b, service)
		err := f.dialFrom(f.host, "tcp", service)
		testkit.Check(f.t, err == nil, "%s from the host: %v", service, err)
	}
}

func (f *fixture) calls(p *pod, service netip.AddrPort) {
	f.t.Helper()
	err := f.dialFrom(p.Namespace, "tcp", service)
	testkit.Check(f.t, err == nil, "%s by socket: %v", service, err)
	_, err = testkit.RoundTrip(f.t, p.Namespace, "tcp", service.String(), []byte("x"))
	testkit.Check(f.t, err == nil, "%s by packets: %v", service, err)
}

// elsewhere sends traffic between a pod whose network has routes through the host and a pod
// of another link mode, and calls a service of that pod.
func (f *fixture) elsewhere(mode string) {
	f.t.Helper()
	var routes []string
	for i, own := range ownAddresses {
		for _, to := range [][]string{{"10.116.0.0/24", "10.96.0.0/12"}, {"fd00:116::/64", "fd00:96::/64"}}[i] {
			routes = append(routes, fmt.Sprintf(`{"dst":%q,"gw":%q}`, to, own.Addr()))
		}
	}
	p := f.added("p", routing(mode, strings.Join(routes, ","),
		`,"hostAddresses":["10.113.0.2","fd00:113::2"],"services":"both"`))
	f.must(f.check(p))
	far := f.added("far", distant)
	for i, ip := range far.ips() {
		f.reach(p.Namespace, far.Namespace, ip)
		f.reach(far.Namespace, p.Namespace, p.ips()[i])
		f.calls(p, f.service([]string{"10.96.0.10:80", "[fd00:96::10]:80"}[i], "tcp", far, ip))
	}
	f.must(f.del(far))
	f.must(f.del(p))
}

// onlyRouter removes the router's addresses: they no longer answer.
func (f *fixture) onlyRouter(p *pod, device string) {
	f.t.Helper()
	have := testkit.Must(rtnl.In(f.host).Device(device))(f.t)
	for i, router := range routerAddresses {
		testkit.Check(f.t, slices.Contains(have.Addrs, ownAddresses[i]) && !slices.Contains(have.Addrs, router),
			"%s has %v, want %v and not %v", device, have.Addrs, ownAddresses[i], router)
		f.must(testkit.Ping(p.Namespace, router.Addr(), 56))
		testkit.Command(f.t, f.outside, "ip addr del "+router.String()+" dev far")
		testkit.Command(f.t, p.Namespace, "ip neigh flush dev eth0")
		testkit.Check(f.t, testkit.Ping(p.Namespace, router.Addr(), 56) != nil,
			"somebody answers for %v, which the router has no more", router)
	}
}

// TestRouterPorts reaches a pod by host ports from behind the router. Replies take the direct way.
func TestRouterPorts(t *testing.T) {
	eachName(t, []string{"macvlan", "ipvlan-l2"}, newSocketFixture, func(t *testing.T, f *fixture, link string) {
		requireLink(t, link)
		beyond := f.routed(routerAddresses)
		p := f.added("a", withRouter(link, `,"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}]}`))
		for i, ip := range p.ips() {
			testkit.Echo(t, p.Namespace, "tcp", netip.AddrPortFrom(ip, 80).String())
			to := netip.AddrPortFrom(hostAddresses[i].Addr(), 8080)
			_, err := testkit.RoundTrip(t, beyond, "tcp", to.String(), make([]byte, 5000))
			testkit.Check(t, err == nil, "%s from beyond the router: %v", to, err)
			for _, host := range []netip.Addr{to.Addr(), ownAddresses[i].Addr()} {
				to := netip.AddrPortFrom(host, 8080)
				err := f.dialFrom(f.host, "tcp", to)
				testkit.Check(t, err == nil, "%s from the host: %v", to, err)
			}
		}
		f.checkAndDelete(p)
	})
}

// TestRouterRefused runs ADD with impossible values: it fails, names them and changes nothing.
func TestRouterRefused(t *testing.T) {
	f := newFixture(t)
	plain := network("net", "macvlan", "")
	first := f.added("first", plain) // the host is the gateway
	f.refused(f.pod("a", withRouter("macvlan", "")), types.ErrInvalidNetworkConfig, "10.113.0.2", "delete first",
		"container first")
	f.must(f.del(first))
	for _, router := range routerAddresses { // now the administrator's
		testkit.Command(t, f.host, "ip addr del "+router.String()+" dev "+podlink.MacvlanHostDevice)
		testkit.Command(t, f.host, "ip addr add "+router.String()+" dev "+podlink.MacvlanHostDevice)
	}
	f.refused(f.pod("a", withRouter("macvlan", "")), types.ErrInternal, "address 10.113.0.1", "ip addr del")
	for _, router := range routerAddresses {
		testkit.Command(t, f.host, "ip addr del "+router.String()+" dev "+podlink.MacvlanHostDevice)
	}
	f.must(f.del(f.added("first", plain)))
	p := f.added("a", withRouter("macvlan", "")) // the host's own gateway goes
	f.refused(f.pod("b", withRouter("macvlan", `,"runtimeConfig":{"ips":["10.113.0.2"]}`)), types.ErrInternal,
		"10.113.0.2 is not available")
	f.checkAndDelete(p)
}

// TestRouterOfIPAM gets addresses and gateways from an IPAM plugin without the addresses of the host.
func TestRouterOfIPAM(t *testing.T) {
	static := func(address, host string) []byte {
		return []byte(strings.Replace(string(delegating("macvlan", `{"type":"static","addresses":[{"address":"10.113.0.9/24"`+
			address+`}]}`)),
			`{"cniVersion":"1.1.0"`, `{"cniVersion":"1.0.0","hostAddresses":["`+host+`"]`, 1))
	}
	f := newFixture(t)
	f.requirePlugin("static")
	beyond := f.routed(routerAddresses)
	p := f.pod("a", static(`,"gateway":"10.113.0.1"`, "10.113.0.2"))
	f.worked(f.runFor(p, "ADD", debianPlugins))
	f.reach(p.Namespace, beyond, beyondAddresses[0].Addr())
	f.reach(p.Namespace, f.host, ownAddresses[0].Addr())
	f.worked(f.runFor(p, "DEL", debianPlugins))
	for _, row := range []struct {
		config []byte
		code   uint
		words  []string
	}{
		{static(`,"gateway":"10.113.0.1"`, "10.113.0.1"), types.ErrInternal, []string{"router 10.113.0.1 is the host's own"}},
		{static(`,"gateway":"10.113.0.1"`, "10.113.0.9"), types.ErrInvalidNetworkConfig,
			[]string{"hostAddresses: 10.113.0.9"}},
		{static(`,"gateway":"10.113.0.1"`, "10.99.0.9"), types.ErrInvalidNetworkConfig, []string{"hostAddresses: 10.99.0.9",
			"10.113.0.9/24"}},
	} {
		p.request.Config = row.config
		f.failed(f.runFor(p, "ADD", debianPlugins), row.code, row.words...)
		f.worked(f.runFor(p, "DEL", debianPlugins))
	}
}
