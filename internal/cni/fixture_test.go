// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/cni/record"
	"mustang/internal/datapath"
	"mustang/internal/datapath/kept"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// fixture is a host with the plugin, and an uplink to a machine outside.
type fixture struct {
	t             testing.TB
	host, outside *netns.Namespace
	plugin        *Plugin
}

// The host's addresses on its uplink, and the addresses of the machine outside.
var (
	hostAddresses    = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}
	outsideAddresses = []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24"), netip.MustParsePrefix("2001:db8::2/64")}
)

// newFixture returns a fixture whose datapath has its maps already. It may have programs of an earlier test.
func newFixture(t testing.TB) *fixture {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	return newFixtureOver(t, kept.Root(t))
}

// newSocketFixture is newFixture with a control group, and with the programs for its sockets.
func newSocketFixture(t testing.TB) *fixture {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	f := newFixtureOver(t, kept.WithSockets(t))
	f.plugin.Cgroup = testkit.Cgroup(t)
	return f
}

// newBareFixture returns a fixture without a datapath: the first ADD makes it.
func newBareFixture(t testing.TB) *fixture {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	return newFixtureOver(t, filepath.Join(testkit.BPFFS(t), "root"))
}

func newFixtureOver(t testing.TB, bpfRoot string) *fixture {
	t.Helper()
	f := &fixture{t: t, host: testkit.Namespace(t, "host"), outside: testkit.Namespace(t, "outside")}
	f.must(rtnl.AddVeth(rtnl.VethEnd{Namespace: f.host, Name: "uplink"}, rtnl.VethEnd{Namespace: f.outside,
		Name: "far"}, 1500))
	f.must(rtnl.In(f.host).Configure("uplink", rtnl.DeviceConfig{Addresses: hostAddresses, Up: true}))
	f.must(rtnl.In(f.outside).Configure("far", rtnl.DeviceConfig{Addresses: outsideAddresses, Up: true}))
	f.must(rtnl.In(f.host).AddDefaultRoutes("uplink", []netip.Addr{outsideAddresses[0].Addr(),
		outsideAddresses[1].Addr()}))
	dir := t.TempDir()
	f.plugin = &Plugin{
		StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), BPFRoot: bpfRoot,
		DeleteDevice: rtnl.DeleteInChild,
	}
	return f
}

func (f *fixture) must(err error) {
	f.t.Helper()
	testkit.Succeed(f.t, err)
}

func (f *fixture) in(t testing.TB) *fixture {
	part := *f
	part.t = t
	return &part
}

// network is the configuration of a network with addresses of both families and more
// keys. Services are translated by packet, unless more configures them.
func network(name, link, more string) []byte {
	n := len(name) + int(name[0])
	if !strings.Contains(more, `"services"`) {
		more += `,"services":"tc"`
	}
	return fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":%q,"type":"mustang-cni","link":%q,"parent":"uplink",
		"ipam":{"type":"mustang","ranges":[[{"subnet":"10.%d.0.0/24"}],[{"subnet":"fd00:%d::/64"}]]}%s}`,
		name, link, n, n, more)
}

// pod is a pod with a network namespace.
type pod struct {
	*netns.Namespace
	request Request
	result  *types100.Result
}

func (f *fixture) pod(id string, config []byte) *pod {
	ns := testkit.Namespace(f.t, id)
	return &pod{Namespace: ns, request: Request{ContainerID: id, IfName: "eth0", Netns: ns.Path(), Config: config}}
}

func (f *fixture) add(p *pod) (err error) {
	return f.host.Do(func() error {
		p.result, err = f.plugin.Add(f.t.Context(), p.request)
		return err
	})
}

// added creates a pod and runs ADD, which must succeed.
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
	return f.checkWith(p, text(f.t, p.result))
}

func (f *fixture) checkAndDelete(p *pod) {
	f.t.Helper()
	f.must(f.check(p))
	f.must(f.del(p))
}

func (f *fixture) gc(config []byte, valid ...*pod) error {
	var list []string
	for _, p := range valid {
		list = append(list, fmt.Sprintf(`{"containerID":%q,"ifname":%q}`, p.request.ContainerID, p.request.IfName))
	}
	all := with(config, `"cni.dev/valid-attachments":[`+strings.Join(list, ",")+"]")
	return f.host.Do(func() error { return f.plugin.GC(f.t.Context(), Request{Config: all}) })
}

func text(t testing.TB, result *types100.Result) string {
	t.Helper()
	return string(testkit.Must(result.MarshalJSON())(t))
}

func (p *pod) ips() []netip.Addr {
	var out []netip.Addr
	for _, prefix := range prefixesOf(p.result) {
		out = append(out, prefix.Addr())
	}
	return out
}

// reach sends a message over TCP and UDP from one namespace to an address of another, and receives the answer.
func (f *fixture) reach(from, to *netns.Namespace, addr netip.Addr) {
	f.t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		server := testkit.Echo(f.t, to, network, netip.AddrPortFrom(addr, 0).String())
		_, err := testkit.RoundTrip(f.t, from, network, server.String(), make([]byte, 1200))
		testkit.Check(f.t, err == nil, "%s to %s of %s by %s: %v", from.Name(), addr, to.Name(), network, err)
	}
}

func (f *fixture) reachGateways(pods ...*pod) {
	f.t.Helper()
	for _, p := range pods {
		for i := range p.result.IPs {
			f.reach(p.Namespace, f.host, gateway(p, i))
		}
	}
}

func (f *fixture) service(frontend string, network string, p *pod, addr netip.Addr) netip.AddrPort {
	f.t.Helper()
	server := testkit.Echo(f.t, p.Namespace, network, netip.AddrPortFrom(addr, 0).String())
	s := service.Service{Frontend: netip.MustParseAddrPort(frontend), Backends: service.Backends(server)}
	f.tables(func(d *datapath.Datapath) error {
		_, _, err := d.Services().Put(f.t.Context(), service.CLI, s)
		return err
	})
	return s.Frontend
}

// requireLink skips the test if the kernel does not support a link mode.
func requireLink(t *testing.T, name string) {
	t.Helper()
	mode := testkit.Must(podlink.Lookup(name))(t)
	testkit.RequireMode(t, mode.Probe())
}

// left lists the state of the plugin on the host, in its directories and in the datapath.
func (f *fixture) left() []string {
	f.t.Helper()
	var out []string
	devices := testkit.Must(rtnl.In(f.host).Devices())(f.t)
	for _, device := range devices {
		// The kernel adds one a while after a device is set up.
		addrs := slices.DeleteFunc(device.Addrs, func(p netip.Prefix) bool { return p.Addr().IsLinkLocalUnicast() })
		out = append(out, fmt.Sprintf("device %s %s %v", device.Kind, device.Name, addrs))
	}
	for _, pattern := range []string{f.plugin.RunDir + "/*/*/*", f.plugin.StateDir + "/*/*"} {
		out = append(out, testkit.Must(filepath.Glob(pattern))(f.t)...)
	}
	d, err := datapath.OpenExisting(f.plugin.datapathOptions())
	if err != nil {
		return out
	}
	defer d.Close()
	endpoints := testkit.Must(d.Endpoints().List(f.t.Context()))(f.t)
	services := testkit.Must(d.Services().List(f.t.Context()))(f.t)
	scopes := testkit.Must(d.Sockets().List(f.t.Context()))(f.t)
	hosts := 0
	for _, scope := range scopes {
		if scope.Kind == datapath.HostScope {
			hosts++
		} else {
			out = append(out, fmt.Sprint("sockets of ", scope.Cookie))
		}
	}
	for _, e := range endpoints {
		out = append(out, fmt.Sprintf("endpoint %d %s", e.ID, e.IP))
	}
	for _, s := range services {
		out = append(out, fmt.Sprint("service ", s))
	}
	links := testkit.Must(filepath.Glob(filepath.Join(f.plugin.BPFRoot, "v*/links/*")))(f.t)
	return append(append(out, fmt.Sprint("hosts ", hosts)), links...)
}

// modes are the link modes that need neither Open vSwitch nor another process.
func modes() []podlink.Mode {
	var out []podlink.Mode
	for _, mode := range podlink.Modes() {
		if mode.Traits().Needs == podlink.NeedsNothing || mode.Traits().Needs == podlink.NeedsUplink {
			out = append(out, mode)
		}
	}
	return out
}

// eachMode runs a test of each of these link modes beside the others, with a fixture of its own.
func eachMode(t *testing.T, test func(*testing.T, *fixture, podlink.Mode)) {
	for _, mode := range modes() {
		t.Run(mode.Name(), func(t *testing.T) {
			t.Parallel()
			testkit.RequireMode(t, mode.Probe())
			test(t, newFixture(t), mode)
		})
	}
}

// eachName runs a test for each name, such as a link mode, in parallel. Each has a fixture of its own.
func eachName(t *testing.T, names []string, newOne func(testing.TB) *fixture,
	test func(t *testing.T, f *fixture, name string)) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newOne(t), name)
		})
	}
}

func gateway(p *pod, i int) netip.Addr {
	addr, _ := netip.AddrFromSlice(p.result.IPs[i].Gateway)
	return addr.Unmap()
}

func (f *fixture) dropServices() {
	f.tables(func(d *datapath.Datapath) error {
		services, err := d.Services().List(f.t.Context())
		for _, s := range services {
			err = errors.Join(err, d.Services().Delete(f.t.Context(), s.Owner, s.Key()))
		}
		return err
	})
}

func TestMain(m *testing.M) {
	for variable, role := range map[string]func(string) error{childVariable: child, dialVariable: dial} {
		if text := os.Getenv(variable); text != "" {
			if err := role(text); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
	}
	if filepath.Base(os.Args[0]) == fakeIPAM {
		if err := runFakeIPAM(os.Args[0], os.Getenv("CNI_COMMAND")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	code := kept.Main(m, testkit.CheckLeaks)
	if builtDir != "" {
		_ = os.RemoveAll(builtDir)
	}
	os.Exit(code)
}

// fill puts a pod's names into a text: {device} is the host's device of the pod,
// {gateways} the device that has the gateways, {4} and {6} are the pod's addresses,
// {g4} and {g6} their gateways, {via4} and {via6} the next hops of its default routes.
func (f *fixture) fill(p *pod, mode, text string) string {
	gateways := map[string]string{"veth": "lo", "bridge": podlink.DefaultBridge,
		"macvlan": podlink.MacvlanHostDevice}[mode]
	ips := p.ips()
	hop4, hop6 := gateway(p, 0).String(), gateway(p, 1).String()
	if mode == "veth" { // the next hops are the same for all pods
		hop4, hop6 = "169.254.1.1", "fe80::1"
	}
	return strings.NewReplacer(
		"{device}", record.DeviceName("net", p.request.owner()), "{gateways}", gateways,
		"{4}", ips[0].String(), "{6}", ips[1].String(), "{g4}", gateway(p, 0).String(), "{g6}", gateway(p, 1).String(),
		"{via4}", hop4, "{via6}", hop6,
	).Replace(text)
}

// oneLine fails the test unless the coded error is one line that contains the words.
func (f *fixture) oneLine(err error, words ...string) {
	f.t.Helper()
	if err == nil {
		f.t.Errorf("no error, want one with %q", words)
		return
	}
	said := Coded(err).Msg
	testkit.Check(f.t, !strings.Contains(said, "\n"), "%q is more than one line", said)
	for _, word := range words {
		testkit.Check(f.t, strings.Contains(said, word), "%q lacks %q", said, word)
	}
}
