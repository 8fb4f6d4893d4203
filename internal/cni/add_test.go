// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/cni/netconf"
	"mustang/internal/netns"
	"mustang/internal/ovs"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestAdd attaches two pods in each link mode and sends traffic between them, to the host, to a machine outside, and to
// a service.
func TestAdd(t *testing.T) {
	for _, mode := range modes() {
		t.Run(mode.Name(), func(t *testing.T) {
			testkit.RequireMode(t, mode.Probe())
			testPair(t, newFixture(t), network("net", mode.Name(), ""))
		})
	}
}

// TestAddOpenVSwitch does the same with Open vSwitch.
func TestAddOpenVSwitch(t *testing.T) {
	if err := ovs.FindPrograms(); err != nil {
		testkit.Skip(t, err.Error())
	}
	for _, link := range []string{"ovs-veth", "ovs-internal"} {
		t.Run(link, func(t *testing.T) {
			f := newFixture(t)
			dir, err := os.MkdirTemp("", "mst-ovs-") // short, for the paths of sockets
			f.must(err)
			t.Cleanup(func() { f.must(os.RemoveAll(dir)) })
			s := testkit.Must(ovs.Start(f.host, filepath.Join(dir, "ovs"), ""))(f.t)
			t.Cleanup(func() { f.must(s.Stop()) })
			if s.Datapath() == ovs.UserSpace {
				testkit.NeedsOther(t)
			}
			testPair(t, f, network("net", link, fmt.Sprintf(`,"ovsdb":%q`, s.Socket())))
		})
	}
}

// testPair attaches two pods, sends traffic, and detaches them.
func testPair(t *testing.T, f *fixture, config []byte) {
	f.must(f.del(f.added("first", config))) // makes what stays
	before := f.left()
	a, b := f.added("a", config), f.added("b", config)
	for i, ip := range a.ips() {
		f.reach(b.Namespace, a.Namespace, ip)
		f.reach(a.Namespace, b.Namespace, b.ips()[i])
		f.reach(f.host, a.Namespace, ip)
		f.reach(a.Namespace, f.host, gateway(a, i))
		f.serves(a, b, ip, []string{"10.96.0.9:80", "[fd00:96::9]:80"}[i])
	}
	for _, p := range []*pod{a, b} {
		err := f.check(p)
		testkit.Check(t, err == nil, "CHECK: %v", err)
		f.must(f.del(p))
		f.must(f.del(p))
	}
	f.dropServices()
	f.same(before, "DEL")
}

// TestResult compares the result of ADD with the devices and routes.
func TestResult(t *testing.T) {
	for _, mode := range modes() {
		for _, mtu := range []int{0, 1400} {
			t.Run(fmt.Sprintf("%s, MTU %d", mode.Name(), mtu), func(t *testing.T) {
				t.Parallel()
				testkit.RequireMode(t, mode.Probe())
				f := newFixture(t)
				more, mac := fmt.Sprintf(`,"mtu":%d,"dns":{"nameservers":["10.96.0.10"],"options":["ndots:5"]}`, mtu), ""
				if slices.Contains(crashModes, mode.Name()) { // others can't choose the address
					mac = fmt.Sprintf("02:00:00:00:%02x:%02x", mtu>>8, mtu&0xff)
					more += `,"runtimeConfig":{"mac":"` + mac + `"}`
				}
				p := f.added("a", network("net", mode.Name(), more))
				f.compare(p, mode.Traits().HostSide)
				dns := types.DNS{Nameservers: []string{"10.96.0.10"}, Options: []string{"ndots:5"}}
				testkit.Check(t, reflect.DeepEqual(p.result.DNS, dns), "ADD gives %+v, want %+v", p.result.DNS, dns)
				got := p.result.Interfaces[len(p.result.Interfaces)-1].Mac
				testkit.Check(t, mac == "" || got == mac, "the pod has MAC address %s, want %s", got, mac)
				want := map[int]int{0: 1500, 1400: 1400}[mtu]
				testkit.Check(t, p.result.Interfaces[0].Mtu == want, "MTU is %d, want %d", p.result.Interfaces[0].Mtu, want)
				f.checkAndDelete(p)
			})
		}
	}
}

// compare compares the result with the kernel.
func (f *fixture) compare(p *pod, hostSide bool) {
	f.t.Helper()
	want := 1
	if hostSide {
		want = 2
	}
	testkit.Require(f.t, len(p.result.Interfaces) == want && p.result.CNIVersion == "1.1.0",
		"want %d interfaces of version 1.1.0: %s", want, text(f.t, p.result))
	for _, i := range p.result.Interfaces {
		ns := f.host
		if i.Sandbox != "" {
			ns = p.Namespace
			testkit.Check(f.t, i.Name == p.request.IfName && i.Sandbox == p.request.Netns,
				"interface %s in %s", i.Name, i.Sandbox)
		}
		device := testkit.Must(rtnl.In(ns).Device(i.Name))(f.t)
		testkit.Check(f.t, macText(device.MAC) == i.Mac && device.MTU == i.Mtu && device.Up,
			"%s is %v with MTU %d, the result has %v", i.Name, device.MAC, device.MTU, i)
	}
	inPod := slices.IndexFunc(p.result.Interfaces, func(i *types100.Interface) bool { return i.Sandbox != "" })
	device := testkit.Must(rtnl.In(p.Namespace).Device(p.request.IfName))(f.t)
	told := prefixesOf(p.result)
	for i, ip := range p.result.IPs {
		testkit.Check(f.t, ip.Interface != nil && *ip.Interface == inPod,
			"%v is of interface %v, want %d", ip, ip.Interface, inPod)
		testkit.Check(f.t, slices.Contains(device.Addrs, told[i]), "device has %v, the result %v", device.Addrs, told[i])
		subnet := []string{"10.113.0.1", "fd00:113::1"}[i]
		testkit.Check(f.t, gateway(p, i).String() == subnet, "gateway of %v is %v, want %s", told[i], gateway(p, i), subnet)
	}
	for _, addr := range device.Addrs {
		testkit.Check(f.t, !addr.Addr().IsGlobalUnicast() || slices.Contains(told, addr),
			"device has %v, which the result lacks", addr)
	}
	have, routes := f.routes(p.Namespace), routesOf(p.result)
	testkit.Check(f.t, slices.Equal(have, routes), "default routes are %q, the result has %q", have, routes)
}

// routes returns the default routes of a namespace as iproute2 prints them.
func (f *fixture) routes(ns *netns.Namespace) []string {
	f.t.Helper()
	var out []string
	for _, family := range []string{"-4", "-6"} {
		var list []struct{ Dst, Gateway, Dev string }
		f.must(json.Unmarshal([]byte(testkit.Command(f.t, ns, "ip -json "+family+" route show default")), &list))
		for _, r := range list {
			out = append(out, strings.TrimSpace(family+" "+r.Gateway))
		}
	}
	return out
}

func routesOf(result *types100.Result) []string {
	var out []string
	for _, r := range result.Routes {
		family := map[bool]string{true: "-4", false: "-6"}[r.Dst.IP.To4() != nil]
		hop, _ := netip.AddrFromSlice(r.GW)
		if ones, _ := r.Dst.Mask.Size(); ones != 0 {
			family += " " + r.Dst.String()
		}
		if hop.IsValid() {
			family += " " + hop.Unmap().String()
		}
		out = append(out, family)
	}
	slices.Sort(out)
	return out
}

// TestServices reaches a service from a pod by a translated socket and by translated packets.
func TestServices(t *testing.T) {
	for _, mode := range modes() {
		for _, test := range []struct {
			services         string
			sockets, packets bool
		}{
			{netconf.ServicesSocket, true, false},
			{netconf.ServicesTC, false, true},
			{netconf.ServicesBoth, true, true},
			{netconf.ServicesOff, false, false},
		} {
			t.Run(mode.Name()+"/"+test.services, func(t *testing.T) {
				t.Parallel()
				testkit.RequireMode(t, mode.Probe())
				// The source guard needs both programs on a pod's own device.
				test.packets = test.packets || test.sockets && !mode.Traits().HostSide
				f := newSocketFixture(t)
				f.must(f.add(f.pod("other", network("net", mode.Name(), `,"services":"both"`)))) // has the datapath made
				config := network("net", mode.Name(), fmt.Sprintf(`,"services":%q`, test.services))
				a, b := f.added("a", config), f.added("b", config)
				for i, frontend := range []string{"10.96.0.9:80", "[fd00:96::9]:80"} {
					service := f.service(frontend, "tcp", a, a.ips()[i])
					err := f.dialFrom(f.host, "tcp", service)
					testkit.Check(t, err == nil, "%s from the host: %v", service, err)
					err = f.dialFrom(b.Namespace, "tcp", service)
					works := err == nil
					testkit.Check(t, works == (test.sockets || test.packets), "%s in the control group: %v", service, err)
					if err == nil {
						_, err = testkit.RoundTrip(t, b.Namespace, "tcp", service.String(), []byte("x"))
						works := err == nil
						testkit.Check(t, works == test.packets, "%s outside of the control group: %v", service, err)
					}
				}
				for _, p := range []*pod{a, b} {
					f.checkAndDelete(p)
				}
			})
		}
	}
}

// TestMasquerade reaches a machine outside without routes to pods: it sees the host's address. Within the host, pods
// keep their own addresses.
func TestMasquerade(t *testing.T) {
	eachName(t, crashModes, newFixture, func(t *testing.T, f *fixture, mode string) {
		p := f.added("a", network("net", mode, `,"services":"off","masquerade":true`))
		other := f.added("b", network("net", mode, `,"services":"off","masquerade":true`))
		for i, outside := range outsideAddresses {
			for _, test := range []struct {
				at   *netns.Namespace
				addr netip.Addr
				seen netip.Addr
			}{
				{f.outside, outside.Addr(), hostAddresses[i].Addr()},
				{other.Namespace, other.ips()[i], p.ips()[i]},
			} {
				server := testkit.Echo(t, test.at, "tcp", netip.AddrPortFrom(test.addr, 0).String())
				seen, err := testkit.RoundTrip(t, p.Namespace, "tcp", server.String(), []byte("x"))
				testkit.Check(t, err == nil && seen.Addr() == test.seen,
					"%s sees the pod as %s, want %s: %v", test.addr, seen, test.seen, err)
			}
		}
		f.must(f.check(p))
	})
}

// TestCycles attaches and detaches a pod many times: nothing grows.
func TestCycles(t *testing.T) {
	cycles := testkit.Repeats(25, 500)
	for _, mode := range crashModes {
		t.Run(mode, func(t *testing.T) {
			f := newSocketFixture(t)
			p := f.pod("pod", network("net", mode, `,"services":"socket"`))
			round := func(i int) {
				p.request.ContainerID = fmt.Sprint("c", i)
				f.must(f.add(p))
				f.must(f.del(p))
			}
			for i := range 10 { // caches fill
				round(i)
			}
			before, files := f.left(), openFiles(t)
			for i := range cycles {
				round(i)
			}
			f.same(before, fmt.Sprint(cycles, " cycles"))
			// The last devices that were deleted hold a socket until the kernel is done.
			testkit.Eventually(t, 10*time.Second, func() error {
				if now := openFiles(t); now > files {
					return fmt.Errorf("%d open files before, %d after", files, now)
				}
				return nil
			})
		})
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries := testkit.Must(os.ReadDir("/proc/self/fd"))(t)
	return len(entries)
}

// TestAtOnce runs 100 ADDs at once, which create the network as well, then 100 DELs.
func TestAtOnce(t *testing.T) {
	for _, mode := range crashModes {
		t.Run(mode, func(t *testing.T) {
			const pods = 100
			f := newSocketFixture(t)
			config := network("net", mode, `,"services":"socket"`)
			var all []*pod
			for i := range pods {
				all = append(all, f.pod(fmt.Sprint("p", i), config))
			}
			atOnce(t, all, f.add)
			seen := map[netip.Addr]bool{}
			for _, p := range all {
				for _, ip := range p.ips() {
					testkit.Check(t, !seen[ip], "%s is given out twice", ip)
					seen[ip] = true
				}
			}
			f.reach(all[0].Namespace, all[pods-1].Namespace, all[pods-1].ips()[0])
			f.reach(all[pods/2].Namespace, f.host, gateway(all[0], 0))
			atOnce(t, all, f.del)
			after := f.left()
			f.must(f.del(f.added("one", config)))
			f.same(after, "one more")
			for _, p := range all {
				f.must(p.Close())
				f.must(netns.Delete(p.Name()))
			}
		})
	}
}

func atOnce(t *testing.T, pods []*pod, do func(*pod) error) {
	t.Helper()
	var wait sync.WaitGroup
	errs := make([]error, len(pods))
	for i, p := range pods {
		wait.Go(func() { errs[i] = do(p) })
	}
	wait.Wait()
	for i, err := range errs {
		testkit.Require(t, err == nil, "%s: %v", pods[i].Name(), err)
	}
}
