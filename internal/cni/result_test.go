// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// TestResult compares what ADD tells with the devices and routes that there are.
func TestResult(t *testing.T) {
	for _, mode := range modes() {
		for _, mtu := range []int{0, 1400} {
			t.Run(fmt.Sprintf("%s, MTU %d", mode.Name(), mtu), func(t *testing.T) {
				t.Parallel()
				testkit.RequireMode(t, mode.Probe())
				f := newFixture(t)
				more := fmt.Sprintf(`,"mtu":%d`, mtu)
				if slices.Contains(crashModes, mode.Name()) { // others can't choose the address
					more += fmt.Sprintf(`,"runtimeConfig":{"mac":"02:00:00:00:%02x:%02x"}`, mtu>>8, mtu&0xff)
				}
				p := f.added("a", network("net", mode.Name(), more))
				f.compare(p, mode.HostSide())
				if want := map[int]int{0: 1500, 1400: 1400}[mtu]; p.result.Interfaces[0].Mtu != want {
					t.Errorf("MTU is %d, want %d", p.result.Interfaces[0].Mtu, want)
				}
				f.must(f.check(p))
				f.must(f.del(p))
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
	if len(p.result.Interfaces) != want || p.result.CNIVersion != "1.1.0" {
		f.t.Fatalf("want %d interfaces of version 1.1.0: %s", want, text(f.t, p.result))
	}
	for _, i := range p.result.Interfaces {
		ns := f.host
		if i.Sandbox != "" {
			ns = p.Namespace
			if i.Name != p.request.IfName || i.Sandbox != p.request.Netns {
				f.t.Errorf("interface %s in %s", i.Name, i.Sandbox)
			}
		}
		device, err := ns.Device(i.Name)
		f.must(err)
		if macText(device.MAC) != i.Mac || device.MTU != i.Mtu || !device.Up {
			f.t.Errorf("%s is %v with MTU %d, the result has %v", i.Name, device.MAC, device.MTU, i)
		}
	}
	inPod := slices.IndexFunc(p.result.Interfaces, func(i *types100.Interface) bool { return i.Sandbox != "" })
	device, err := p.Device(p.request.IfName)
	f.must(err)
	told := ipsOf(p.result)
	for i, ip := range p.result.IPs {
		if ip.Interface == nil || *ip.Interface != inPod {
			f.t.Errorf("%v is of interface %v, want %d", ip, ip.Interface, inPod)
		}
		if !slices.Contains(device.Addrs, told[i]) {
			f.t.Errorf("device has %v, the result %v", device.Addrs, told[i])
		}
		subnet := []string{"10.113.0.1", "fd00:113::1"}[i]
		if gateway(p, i).String() != subnet {
			f.t.Errorf("gateway of %v is %v, want %s", told[i], gateway(p, i), subnet)
		}
	}
	for _, addr := range device.Addrs {
		if addr.Addr().IsGlobalUnicast() && !slices.Contains(told, addr) {
			f.t.Errorf("device has %v, which the result lacks", addr)
		}
	}
	if have, told := f.routes(p.Namespace), routesOf(p.result); !slices.Equal(have, told) {
		f.t.Errorf("default routes are %q, the result has %q", have, told)
	}
}

// routes are a namespace's default routes, as iproute2 tells them.
func (f *fixture) routes(ns *nl.Namespace) []string {
	f.t.Helper()
	var out []string
	for _, family := range []string{"-4", "-6"} {
		var list []struct{ Dst, Gateway, Dev string }
		f.must(json.Unmarshal([]byte(command(f.t, ns, "ip -json "+family+" route show default")), &list))
		for _, r := range list {
			out = append(out, strings.TrimSpace(family+" "+r.Gateway))
		}
	}
	return out
}

// routesOf are those of a result, in the same form.
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

// TestPassedOn has what is the runtime's business come through.
func TestPassedOn(t *testing.T) {
	f := newFixture(t)
	dns := types.DNS{Nameservers: []string{"10.96.0.10", "fd00:96::10"}, Domain: "pods.test", Search: []string{"a.test", "b.test"}, Options: []string{"ndots:5"}}
	data, err := json.Marshal(dns)
	f.must(err)
	p := f.added("a", network("net", "veth", `,"dns":`+string(data)+`,"capabilities":{"aliases":true},"args":{"cni":{"labels":[]}},
		"runtimeConfig":{"aliases":{"net":["web","db"]}}`))
	if !reflect.DeepEqual(p.result.DNS, dns) {
		t.Errorf("ADD gives %+v, want %+v", p.result.DNS, dns)
	}
	f.must(f.check(p))
	f.must(f.del(p))
	if p = f.added("b", network("net", "veth", "")); !reflect.DeepEqual(p.result.DNS, types.DNS{}) {
		t.Errorf("ADD gives %+v", p.result.DNS)
	}
}
