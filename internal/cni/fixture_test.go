// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/datapath"
	"mustang/internal/lb"
	"mustang/internal/nl"
	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

// fixture is a host with an uplink to a machine outside, and the plugin on it.
type fixture struct {
	t             testing.TB
	host, outside *nl.Namespace
	plugin        *Plugin
}

// The host's addresses on its uplink, and those of the machine outside.
var (
	hostAddresses    = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}
	outsideAddresses = []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24"), netip.MustParsePrefix("2001:db8::2/64")}
)

func newFixture(t testing.TB) *fixture {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	f := &fixture{t: t, host: testkit.Namespace(t, "host"), outside: testkit.Namespace(t, "outside")}
	f.must(nl.AddWire(nl.WireEnd{Namespace: f.host, Name: "uplink"}, nl.WireEnd{Namespace: f.outside, Name: "far"}, 1500))
	f.must(f.host.Configure("uplink", nl.DeviceConfig{Addresses: hostAddresses, Up: true}))
	f.must(f.outside.Configure("far", nl.DeviceConfig{Addresses: outsideAddresses, Up: true}))
	f.must(f.host.AddDefaultRoutes("uplink", []netip.Addr{outsideAddresses[0].Addr(), outsideAddresses[1].Addr()}))
	dir := t.TempDir()
	f.plugin = &Plugin{
		StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), BPFRoot: filepath.Join(testkit.BPFFS(t), "root"),
	}
	return f
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// in is the fixture of a subtest.
func (f *fixture) in(t testing.TB) *fixture {
	part := *f
	part.t = t
	return &part
}

// network is the configuration of a network with addresses of both families, and
// more keys. Services are by packets, unless more says otherwise.
func network(name, link, more string) []byte {
	n := len(name) + int(name[0])
	if !strings.Contains(more, `"services"`) {
		more += `,"services":"tc"`
	}
	return fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":%q,"type":"mustang-cni","link":%q,"parent":"uplink",
		"ipam":{"type":"mustang","ranges":[[{"subnet":"10.%d.0.0/24"}],[{"subnet":"fd00:%d::/64"}]]}%s}`, name, link, n, n, more)
}

// pod is a network namespace for the plugin.
type pod struct {
	*nl.Namespace
	request Request
	result  *types100.Result
}

func (f *fixture) pod(id string, config []byte) *pod {
	ns := testkit.Namespace(f.t, id)
	return &pod{Namespace: ns, request: Request{ContainerID: id, IfName: "eth0", Netns: ns.Path(), Config: config}}
}

// add runs ADD for a pod.
func (f *fixture) add(p *pod) (err error) {
	return f.host.Do(func() error {
		p.result, err = f.plugin.Add(f.t.Context(), p.request)
		return err
	})
}

// added makes a pod and runs ADD, which must work.
func (f *fixture) added(id string, config []byte) *pod {
	f.t.Helper()
	p := f.pod(id, config)
	f.must(f.add(p))
	return p
}

func (f *fixture) del(p *pod) error {
	return f.host.Do(func() error { return f.plugin.Del(f.t.Context(), p.request) })
}

func (f *fixture) check(p *pod) error {
	request := p.request
	config := strings.TrimSuffix(string(request.Config), "}")
	request.Config = []byte(config + `,"prevResult":` + text(f.t, p.result) + "}")
	return f.host.Do(func() error { return f.plugin.Check(f.t.Context(), request) })
}

func (f *fixture) gc(config []byte, valid ...*pod) error {
	var list []string
	for _, p := range valid {
		list = append(list, fmt.Sprintf(`{"containerID":%q,"ifname":%q}`, p.request.ContainerID, p.request.IfName))
	}
	all := strings.TrimSuffix(string(config), "}") + `,"cni.dev/valid-attachments":[` + strings.Join(list, ",") + "]}"
	return f.host.Do(func() error { return f.plugin.GC(f.t.Context(), Request{Config: []byte(all)}) })
}

func text(t testing.TB, result *types100.Result) string {
	t.Helper()
	data, err := result.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// ips are the addresses that ADD told of.
func (p *pod) ips() []netip.Addr {
	var out []netip.Addr
	for _, prefix := range ipsOf(p.result) {
		out = append(out, prefix.Addr())
	}
	return out
}

// reach sends over TCP and UDP from one namespace to an address of another, and
// the answer back.
func (f *fixture) reach(from, to *nl.Namespace, addr netip.Addr) {
	f.t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		server := testkit.Echo(f.t, to, network, netip.AddrPortFrom(addr, 0).String())
		if _, err := testkit.RoundTrip(f.t, from, network, server.String(), make([]byte, 1200)); err != nil {
			f.t.Errorf("%s to %s of %s by %s: %v", from.Name(), addr, to.Name(), network, err)
		}
	}
}

// service puts a service before a server in a pod.
func (f *fixture) service(frontend string, network string, p *pod, addr netip.Addr) netip.AddrPort {
	f.t.Helper()
	server := testkit.Echo(f.t, p.Namespace, network, netip.AddrPortFrom(addr, 0).String())
	d, err := datapath.OpenExisting(f.plugin.datapathOptions())
	f.must(err)
	defer d.Close()
	s := lb.Service{Frontend: netip.MustParseAddrPort(frontend), Backends: []netip.AddrPort{server}}
	_, _, err = d.PutService(s)
	f.must(err)
	return s.Frontend
}

// requireLink skips the test if the kernel lacks a link mode.
func requireLink(t *testing.T, name string) {
	t.Helper()
	mode, err := podlink.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	testkit.RequireMode(t, mode.Probe())
}

// left lists what there is of the plugin's in the host, in its directories and in
// its tables. Nothing of it depends on chance.
func (f *fixture) left() []string {
	f.t.Helper()
	var out []string
	devices, err := f.host.Devices()
	f.must(err)
	for _, device := range devices {
		// The kernel adds one a while after a device is set up.
		addrs := slices.DeleteFunc(device.Addrs, func(p netip.Prefix) bool { return p.Addr().IsLinkLocalUnicast() })
		out = append(out, fmt.Sprintf("device %s %s %v", device.Kind, device.Name, addrs))
	}
	for _, pattern := range []string{f.plugin.RunDir + "/*/*/*", f.plugin.StateDir + "/*/*"} {
		files, err := filepath.Glob(pattern)
		f.must(err)
		out = append(out, files...)
	}
	d, err := datapath.OpenExisting(f.plugin.datapathOptions())
	if err != nil {
		return out
	}
	defer d.Close()
	endpoints, err := d.Endpoints()
	f.must(err)
	services, err := d.Services()
	f.must(err)
	hosts, err := d.Hosts()
	f.must(err)
	sockets, err := d.SocketPods()
	f.must(err)
	for _, cookie := range sockets {
		out = append(out, fmt.Sprint("sockets of ", cookie))
	}
	for _, e := range endpoints {
		out = append(out, fmt.Sprintf("endpoint %d %s", e.ID, e.IP))
	}
	for _, s := range services {
		out = append(out, fmt.Sprint("service ", s))
	}
	links, err := filepath.Glob(filepath.Join(f.plugin.BPFRoot, "v*/links/*"))
	f.must(err)
	return append(append(out, fmt.Sprint("hosts ", len(hosts))), links...)
}

// modes are the link modes of networks that need no Open vSwitch.
func modes() []podlink.Mode {
	var out []podlink.Mode
	for _, mode := range podlink.Modes() {
		if mode.Needs() == podlink.NeedsNothing || mode.Needs() == podlink.NeedsUplink {
			out = append(out, mode)
		}
	}
	return out
}

// gateway is that of a pod's address.
func gateway(p *pod, i int) netip.Addr {
	addr, _ := netip.AddrFromSlice(p.result.IPs[i].Gateway)
	return addr.Unmap()
}

// dropServices removes all services.
func (f *fixture) dropServices() {
	d, err := datapath.OpenExisting(f.plugin.datapathOptions())
	f.must(err)
	defer d.Close()
	services, err := d.Services()
	f.must(err)
	for _, s := range services {
		f.must(d.DeleteService(s.Frontend, s.Protocol))
	}
}
