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

	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func routing(mode, routes, more string) []byte {
	config := string(network("net", mode, more))
	return []byte(strings.Replace(config, `/64"}]]`, `/64"}]],"routes":[`+routes+`]`, 1))
}

// TestRoutes gives pods routes to a machine, and no default routes: they reach it by the gateway, in each link mode,
// and nothing else. CHECK finds when a route is another, and there are the same after DEL and ADD.
func TestRoutes(t *testing.T) {
	eachMode(t, func(t *testing.T, f *fixture, mode podlink.Mode) {
		beyond := f.routed(nil)
		for i, subnet := range []string{"10.113.0.0/24", "fd00:113::/64"} {
			testkit.Command(t, f.outside, "ip route add "+subnet+" via "+hostAddresses[i].Addr().String())
		}
		config := routing(mode.Name(),
			`{"dst":"198.51.100.0/24","mtu":1300,"priority":5},{"dst":"2001:db8:2::/64","gw":"fd00:113::1","advmss":1200}`,
			`,"defaultRoute":false`)
		f.must(f.del(f.added("first", config)))
		before := f.left()
		var told []string
		for range 2 {
			p := f.added("a", config)
			told = append(told, strings.Join(f.toldRoutes(p), "\n"))
			for i, addr := range beyondAddresses {
				f.reach(p.Namespace, beyond, addr.Addr())
				f.reach(p.Namespace, f.host, gateway(p, i))
				testkit.Check(t, testkit.Ping(p.Namespace, outsideAddresses[i].Addr(), 56) != nil,
					"%v is reached, without a route to it", outsideAddresses[i])
			}
			f.must(f.check(p))
			testkit.Command(t, p.Namespace, "ip route change 198.51.100.0/24 metric 5 mtu 1400 dev eth0"+onlink(p))
			f.oneLine(f.check(p), "route to 198.51.100.0/24", "metric 5 mtu 1300", "is missing")
			testkit.Command(t, p.Namespace, "ip -6 route del 2001:db8:2::/64")
			f.oneLine(f.check(p), "route to 2001:db8:2::/64", "is missing")
			f.must(f.del(p))
			f.same(before, "DEL")
		}
		if told[0] != told[1] || !strings.Contains(told[0], "198.51.100.0/24") || strings.Contains(told[0], "default") {
			t.Errorf("routes are\n%s\nand after DEL and ADD\n%s", told[0], told[1])
		}
	})
}

// onlink returns the next hop of a pod's first route, for iproute2.
func onlink(p *pod) string {
	i := slices.IndexFunc(p.result.Routes, func(r *types.Route) bool { return r.Priority == 5 })
	if hop := p.result.Routes[i].GW; hop != nil {
		return " via " + hop.String() + " onlink"
	}
	return ""
}

// toldRoutes returns the routes of the result, which must equal the kernel's.
func (f *fixture) toldRoutes(p *pod) (told []string) {
	f.t.Helper()
	for _, r := range p.result.Routes {
		dst, priority := r.Dst.String(), r.Priority
		if ones, _ := r.Dst.Mask.Size(); ones == 0 {
			dst = "default"
		}
		if r.Dst.IP.To4() == nil && priority == 0 {
			priority = 1024
		}
		hop, _ := netip.AddrFromSlice(r.GW)
		told = append(told, describeRoute(dst, hop.Unmap(), priority, [2]int{r.MTU, r.AdvMSS}))
	}
	var there []string
	for _, family := range []string{"-4", "-6"} {
		var list []struct {
			Dst, Protocol string
			Gateway       netip.Addr
			Metric        int
			Metrics       []struct{ MTU, AdvMSS int }
		}
		f.must(json.Unmarshal([]byte(testkit.Command(f.t, p.Namespace, "ip -json "+family+" route show dev "+
			p.request.IfName)), &list))
		for _, r := range list {
			var metrics [2]int
			for _, m := range r.Metrics {
				metrics = [2]int{metrics[0] + m.MTU, metrics[1] + m.AdvMSS}
			}
			if r.Protocol != "kernel" {
				there = append(there, describeRoute(r.Dst, r.Gateway, r.Metric, metrics))
			}
		}
	}
	slices.Sort(told)
	if slices.Sort(there); !slices.Equal(told, there) {
		f.t.Errorf("the result tells of %q, there are %q", told, there)
	}
	return told
}

func describeRoute(dst string, via netip.Addr, priority int, metrics [2]int) string {
	return fmt.Sprintf("%s via %v metric %d mtu %d advmss %d", dst, via, priority, metrics[0], metrics[1])
}

// TestRoutesByNeighbour routes through another machine of the pod network to a machine that the gateway does not reach.
func TestRoutesByNeighbour(t *testing.T) {
	neighbour := []netip.Prefix{netip.MustParsePrefix("10.113.0.77/24"), netip.MustParsePrefix("fd00:113::77/64")}
	eachName(t, []string{"macvlan", "ipvlan-l2", "bridge"}, newFixture, func(t *testing.T, f *fixture, link string) {
		requireLink(t, link)
		beyond := f.routed(neighbour)
		if link == "bridge" {
			testkit.Command(t, f.host, "ip link add mst0 type bridge")
			testkit.Command(t, f.host, "ip link set uplink master mst0")
		}
		testkit.Command(t, f.host, "ip route add unreachable 198.51.100.0/24")
		testkit.Command(t, f.host, "ip route add unreachable 2001:db8:2::/64")
		plain := f.added("plain", network("net", link, ""))
		p := f.added("a", routing(link,
			`{"dst":"198.51.100.0/24","gw":"10.113.0.77"},{"dst":"2001:db8:2::/64","gw":"fd00:113::77"}`, ""))
		told := f.toldRoutes(p)
		testkit.Check(t, len(told) == 4, "routes are %q, want two beside the default routes", told)
		for i, addr := range beyondAddresses {
			f.reach(p.Namespace, beyond, addr.Addr())
			f.reach(p.Namespace, f.host, hostAddresses[i].Addr()) // by the gateway
			server := testkit.Echo(t, beyond, "tcp", netip.AddrPortFrom(addr.Addr(), 0).String())
			_, err := testkit.RoundTrip(t, plain.Namespace, "tcp", server.String(), []byte("x"))
			testkit.Check(t, err != nil, "%v is reached by the gateway", addr)
		}
		f.checkAndDelete(p)
		f.must(f.del(plain))
	})
}

// TestDefaultRoutes adds default routes: they replace the routes through the gateway in their family.
func TestDefaultRoutes(t *testing.T) {
	f := newFixture(t)
	for _, row := range []struct{ mode, routes, more, want string }{
		{"veth", `{"dst":"0.0.0.0/0"},{"dst":"::/0","gw":"fd00:113::1"}`, "",
			"default via 169.254.1.1 metric 0, default via fe80::1 metric 1024"},
		{"veth", ``, `,"defaultRoute":false`,
			"10.113.0.0/24 via 169.254.1.1 metric 0, fd00:113::/64 via fe80::1 metric 1024"},
		{"macvlan", `{"dst":"0.0.0.0/0"}`, "", "default via 10.113.0.1 metric 0, default via fd00:113::1 metric 1024"},
		{"macvlan", `{"dst":"0.0.0.0/0","gw":"10.113.0.9","priority":7}`, "",
			"default via 10.113.0.9 metric 7, default via fd00:113::1 metric 1024"},
		{"macvlan", ``, `,"defaultRoute":false`, ""},
	} {
		p := f.added("a", routing(row.mode, row.routes, row.more))
		got := strings.ReplaceAll(strings.Join(f.toldRoutes(p), ", "), " mtu 0 advmss 0", "")
		testkit.Check(t, got == row.want, "%s with [%s]%s: %q, want %q", row.mode, row.routes, row.more, got, row.want)
		f.checkAndDelete(p)
	}
}

// TestRoutesOfTwo gives the second interface of a pod routes: default routes are the
// first's alone, and of two to one destination the second is refused.
func TestRoutesOfTwo(t *testing.T) {
	f := newFixture(t)
	beyond := f.routed(nil)
	a := f.added("a", routing("veth", `{"dst":"10.9.0.0/16"}`, `,"masquerade":true`))
	second := *a
	second.request.IfName = "eth1"
	other := func(routes string) []byte {
		return []byte(strings.NewReplacer(`"net"`, `"other"`, "113", "123").Replace(string(routing("veth", routes, ""))))
	}
	f.must(f.del(f.added("first", other("")))) // makes what stays
	second.request.Config = other(`{"dst":"0.0.0.0/0"},{"dst":"10.9.0.0/16"}`)
	f.refused(&second, types.ErrInternal, "route to 10.9.0.0/16", "has a route already")
	second.request.Config = other(`{"dst":"0.0.0.0/0"},{"dst":"10.8.0.0/16"}`)
	f.must(f.add(&second))
	told := f.toldRoutes(&second)
	testkit.Check(t, len(told) == 3 && !strings.Contains(strings.Join(told, ""), "default"), "routes are %q", told)
	f.reach(a.Namespace, beyond, beyondAddresses[0].Addr())
	for _, p := range []*pod{&second, a} {
		f.checkAndDelete(p)
	}
}

// TestRoutesOfIPAM gets routes from Debian's plugins and from the fake one.
func TestRoutesOfIPAM(t *testing.T) {
	f := newFixture(t)
	dir, path := f.newFakeIPAM()
	for _, row := range []struct {
		plugin, routes, more string
		code                 uint // 0 if it works
		want                 string
	}{
		{"static", `{"dst":"0.0.0.0/0"},{"dst":"10.9.0.0/16","gw":"10.77.0.3"}`, "", 0,
			"10.9.0.0/16 via 10.77.0.3, default via 10.77.0.1"},
		{"host-local", `{"dst":"0.0.0.0/0"},{"dst":"10.9.0.0/16"}`, "", 0,
			"10.9.0.0/16 via 10.77.0.1, default via 10.77.0.1"},
		{fakeIPAM, `{"dst":"0.0.0.0/0","gw":"10.77.0.1"},{"dst":"fd00:9::/48","mtu":1400}`, "", 0,
			"default via 10.77.0.1, default via fd00:77::1, fd00:9::/48 via fd00:77::1 mtu 1400"},
		{fakeIPAM, `{"dst":"0.0.0.0/0","gw":"10.77.0.1"},{"dst":"10.9.0.0/16"}`, `,"defaultRoute":false`, 0,
			"10.9.0.0/16 via 10.77.0.1"},
		{fakeIPAM, `{"dst":"10.9.0.0/16","table":100}`, "", types.ErrInternal, "routes[0]: table 100"},
	} {
		t.Run(row.plugin+" "+row.want, func(t *testing.T) {
			f, dirs, version := f.in(t), debianPlugins, "1.0.0"
			if row.plugin == fakeIPAM {
				dirs, version = dir, "1.1.0"
				f.must(os.WriteFile(path+".routes", []byte(row.routes), 0o600))
			} else {
				f.requirePlugin(row.plugin)
			}
			ipam := map[string]string{
				"static":     `"addresses":[{"address":"10.77.0.9/24","gateway":"10.77.0.1"}]`,
				"host-local": `"dataDir":"` + t.TempDir() + `","ranges":[[{"subnet":"10.77.0.0/24"}]]`,
				fakeIPAM:     `"any":1`,
			}[row.plugin]
			config := string(delegating("bridge", `{"type":"`+row.plugin+`",`+ipam+`,"routes":[`+row.routes+`]}`+row.more))
			p := f.pod("a", []byte(strings.Replace(config, "1.1.0", version, 1)))
			a := f.runFor(p, "ADD", dirs)
			if row.code != 0 {
				f.failed(a, row.code, row.want)
				_, err := rtnl.In(p.Namespace).Device("eth0")
				testkit.Check(t, err != nil, "the pod has a device")
				f.worked(f.runFor(p, "DEL", dirs))
				return
			}
			f.told(p, a)
			if got := strings.NewReplacer(" metric 0", "", " metric 1024", "", " mtu 0", "", " advmss 0",
				"").Replace(strings.Join(f.toldRoutes(p), ", ")); got != row.want {
				t.Errorf("routes are %q, want %q", got, row.want)
			}
			f.worked(f.runFor(p, "CHECK", dirs))
			testkit.Command(t, p.Namespace, "ip route flush 10.9.0.0/16")
			testkit.Command(t, p.Namespace, "ip -6 route flush fd00:9::/48")
			f.failed(f.runFor(p, "CHECK", dirs), types.ErrInternal, "is missing")
			f.worked(f.runFor(p, "DEL", dirs))
		})
	}
}
