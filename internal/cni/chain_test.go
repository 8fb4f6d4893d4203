// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"mustang/internal/cni/netconf"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// chained is the configuration of the plugin behind another plugin.
func chained(more string) []byte {
	return []byte(`{"cniVersion":"1.0.0","name":"net","type":"mustang-cni","chained":true,"services":"tc",` +
		`"parent":"uplink"` + more + `}`)
}

// reference is a network of Debian's bridge or ptp plugin.
func (f *fixture) reference(plugin string) []byte {
	return fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","name":"net","type":%q,"isGateway":true,"ipam":{"type":"host-local","dataDir":%q,
		"ranges":[[{"subnet":"10.80.0.0/24"}],[{"subnet":"fd00:80::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}`,
		plugin, filepath.Join(filepath.Dir(f.plugin.StateDir), "host-local"))
}

// link is a plugin in a chain.
type link struct {
	program string // empty for ours
	config  []byte
}

func (f *fixture) references(plugin, more string) (theirs, ours link) {
	f.requirePlugin(plugin)
	f.requirePlugin("host-local")
	return link{filepath.Join(debianPlugins, plugin), f.reference(plugin)}, link{"", chained(more)}
}

// through runs a verb of a plugin in a chain, with the previous result.
func (f *fixture) through(l link, p *pod, verb string) answer {
	f.t.Helper()
	config := l.config
	if p.result != nil {
		config = f.previous(config, p)
	}
	a := f.run(call{program: l.program, verb: verb, env: p.environment(debianPlugins), config: config})
	if verb == "ADD" && a.exit == 0 {
		f.told(p, a)
	}
	return a
}

// TestChained adds services to the links of Debian's plugins: pods reach a service, the
// result is passed on, CHECK reports faults, and DEL works in either order.
func TestChained(t *testing.T) {
	eachName(t, []string{"ptp", "bridge"}, newSocketFixture, func(t *testing.T, f *fixture, plugin string) {
		// Debian's plugins don't wait until the host may use its IPv6 addresses on new devices.
		f.must(rtnl.In(f.host).SetSysctl("net/ipv6/conf/default/accept_dad", "0"))
		theirs, ours := f.references(plugin, `,"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}]}`)
		plain := link{"", chained("")}
		a, b := f.pod("a", nil), f.pod("b", nil)
		for _, p := range []*pod{a, b} {
			f.worked(f.through(theirs, p, "ADD"))
			before := *p.result
			f.worked(f.through(map[bool]link{true: ours, false: plain}[p == a], p, "ADD"))
			testkit.Check(t, reflect.DeepEqual(*p.result, before), "before %+v\nafter  %+v", before, *p.result)
		}
		f.worked(f.through(ours, a, "CHECK"))
		f.worked(f.through(theirs, a, "CHECK"))
		for i, ip := range a.ips() {
			f.reach(b.Namespace, a.Namespace, ip)
			f.serves(a, b, ip, []string{"10.96.0.9:80", "[fd00:96::9]:80"}[i])
			testkit.Echo(t, a.Namespace, "tcp", netip.AddrPortFrom(ip, 80).String())
			port := netip.AddrPortFrom(hostAddresses[i].Addr(), 8080).String()
			_, err := testkit.RoundTrip(t, f.outside, "tcp", port, make([]byte, 5000))
			testkit.Check(t, err == nil, "host port %s from outside: %v", port, err)
		}
		f.dropServices()
		f.failed(f.through(ours, a, "CHECK"), types.ErrInternal, "host port")
		f.worked(f.through(plain, b, "CHECK"))
		for i, order := range [][]link{{ours, theirs}, {theirs, plain}} {
			p := []*pod{a, b}[i]
			for _, l := range append(order, order...) {
				f.worked(f.through(l, p, "DEL"))
			}
		}
		for _, line := range f.left() {
			if strings.HasPrefix(line, "endpoint") || strings.HasPrefix(line, "service") || strings.Contains(line, ".record") {
				t.Error("left is", line)
			}
		}
	})
}

// serves checks that a pod reaches a service of another.
func (f *fixture) serves(server, client *pod, ip netip.Addr, frontend string) {
	f.t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		service := f.service(frontend, network, server, ip)
		_, err := testkit.RoundTrip(f.t, client.Namespace, network, service.String(), make([]byte, 1200))
		testkit.Check(f.t, err == nil, "service %s by %s: %v", service, network, err)
	}
}

// TestChainedFaults tampers with what a chained plugin has made, and gives it what it cannot serve.
func TestChainedFaults(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	theirs, ours := f.references("ptp", "")
	p := f.pod("a", nil)
	f.failed(f.through(ours, p, "ADD"), types.ErrInvalidNetworkConfig, "prevResult: missing")
	f.worked(f.through(theirs, p, "ADD"))
	f.worked(f.through(ours, p, "ADD"))
	before := f.left()
	told := *p.result
	f.failed(f.through(ours, p, "ADD"), types.ErrInternal, "already")
	f.same(before, "ADD twice")
	dropEndpoint(f, p)
	f.failed(f.through(ours, p, "CHECK"), types.ErrInternal, "not found")
	f.worked(f.through(ours, p, "DEL"))
	f.worked(f.through(ours, p, "ADD"))
	f.worked(f.through(ours, p, "CHECK"))
	testkit.Command(t, p.Namespace, "ip link del eth0")
	f.failed(f.through(ours, p, "CHECK"), types.ErrInternal, `"eth0" is missing`)
	f.worked(f.through(ours, p, "DEL"))
	f.failed(f.through(ours, p, "ADD"), types.ErrInternal, `"eth0"`)
	f.worked(f.through(theirs, p, "DEL"))

	other := f.added("other", network("other", "macvlan", ""))
	before = f.left()
	other.result = &told
	f.failed(f.through(ours, other, "ADD"), types.ErrInternal, `"eth0"`, "macvlan", "veth only")
	f.worked(f.through(ours, other, "DEL"))
	f.same(before, "ADD to a macvlan")
	testkit.Must(rtnl.In(other.Namespace).Device("eth0"))(t)
}

// TestFirst has Debian's tuning run after ours, and change the objects of ours: CHECK uses the last result.
func TestFirst(t *testing.T) {
	f := newFixture(t)
	f.requirePlugin("tuning")
	ours := link{"", []byte(strings.Replace(string(network("net", "veth", "")), "1.1.0", "1.0.0", 1))}
	tuning := link{filepath.Join(debianPlugins, "tuning"),
		[]byte(`{"cniVersion":"1.0.0","name":"net","type":"tuning","dataDir":"` +
			t.TempDir() + `","sysctl":{"net.ipv4.conf.eth0.arp_filter":"1"},"allmulti":true}`)}
	a, b := f.pod("a", nil), f.pod("b", nil)
	for _, p := range []*pod{a, b} {
		for _, l := range []link{ours, tuning} {
			f.worked(f.through(l, p, "ADD"))
		}
	}
	for _, l := range []link{ours, tuning} {
		f.worked(f.through(l, a, "CHECK"))
	}
	for i, ip := range a.ips() {
		f.reach(b.Namespace, a.Namespace, ip)
		f.serves(a, b, ip, []string{"10.96.0.9:80", "[fd00:96::9]:80"}[i])
	}
	f.dropServices()
	for _, l := range []link{tuning, ours} {
		f.worked(f.through(l, a, "DEL"))
		f.worked(f.through(l, b, "DEL"))
	}
	if left := f.left(); slices.ContainsFunc(left, func(line string) bool { return strings.Contains(line, ".record") }) {
		t.Errorf("left is %q", left)
	}
}

// TestBeforeSBR has Debian's sbr come after ours. It adds the pod's routes anew without onlink, so it fails where their
// next hop is outside of the pod's prefix: docs/cni.md.
func TestBeforeSBR(t *testing.T) {
	eachName(t, crashModes, newFixture, func(t *testing.T, f *fixture, mode string) {
		f.requirePlugin("sbr")
		p := f.pod("a", nil)
		f.worked(f.through(link{"", []byte(strings.Replace(string(network("net", mode, "")), "1.1.0", "1.0.0", 1))}, p,
			"ADD"))
		a := f.through(link{filepath.Join(debianPlugins, "sbr"), []byte(`{"cniVersion":"1.0.0","name":"net","type":"sbr"}`)},
			p, "ADD")
		if mode == "veth" {
			testkit.Check(t, a.exit != 0 && strings.Contains(a.stdout, "network is unreachable"), "sbr says %q", a.stdout)
			return
		}
		f.worked(a)
		for _, ip := range p.ips() {
			f.reach(f.host, p.Namespace, ip)
		}
	})
}

const dhcpTimeout = 10 * time.Second // bounds the start of a daemon

// dhcpAnswer bounds the answer of the server, which checks for two seconds whether the address is in use.
const dhcpAnswer = 5 * time.Second

// background starts a program in a namespace, and ends it with the test.
func (f *fixture) background(ns *netns.Namespace, args ...string) *bytes.Buffer {
	f.t.Helper()
	cmd, out := exec.Command(args[0], args[1:]...), &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	f.must(ns.Start(cmd))
	f.t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Wait()
		if f.t.Failed() {
			f.t.Logf("%s: %s", args[0], out)
		}
	})
	return out
}

// dhcp has the machine outside give out addresses, and the host run the daemon of containernetworking's plugin. There
// are two addresses. It returns the network's key ipam.
func (f *fixture) dhcp() (ipam string) {
	f.t.Helper()
	f.requirePlugin(netconf.DHCPType)
	testkit.RequireTool(f.t, "busybox")
	dir := f.t.TempDir()
	leases := filepath.Join(dir, "leases")
	f.must(os.WriteFile(leases, nil, 0o600))
	config := filepath.Join(dir, "udhcpd.conf")
	f.must(os.WriteFile(config, fmt.Appendf(nil, `start 10.113.0.50
end 10.113.0.51
interface far
lease_file %s
pidfile %s/pid
option subnet 255.255.255.0
option router 10.113.0.1
option staticroutes 203.0.113.0/24 10.113.0.1
option lease 3600
`, leases, dir), 0o600))
	f.background(f.outside, "busybox", "udhcpd", "-f", config)
	socket := filepath.Join(dir, "dhcp.sock")
	f.background(f.host, filepath.Join(debianPlugins, netconf.DHCPType), "daemon", "-socketpath", socket, "-timeout",
		dhcpAnswer.String(), "-resendmax", "1s")
	testkit.Eventually(f.t, dhcpTimeout, func() error {
		_, err := os.Stat(socket)
		return err
	})
	return fmt.Sprintf(`{"type":"dhcp","daemonSocketPath":%q}`, socket)
}

func asking(mode, ipam, more string) []byte {
	return fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","name":"net","type":"mustang-cni","link":%q,"parent":"uplink",`+
			`"hostAddresses":["10.113.0.2"],"ipam":%s%s}`,
		mode, ipam, more)
}

func (f *fixture) addDHCP(id string, config []byte) *pod {
	f.t.Helper()
	p := f.pod(id, config)
	f.told(p, f.runFor(p, "ADD", debianPlugins))
	return p
}

// TestDHCP requests addresses from a server in the parent's network.
func TestDHCP(t *testing.T) {
	eachName(t, []string{"macvlan", "bridge"}, newSocketFixture, func(t *testing.T, f *fixture, mode string) {
		beyond := f.routed(routerAddresses[:1])
		if mode == "bridge" {
			testkit.Command(t, f.host, "ip link add mst0 type bridge")
			testkit.Command(t, f.host, "ip link set mst0 up")
			testkit.Command(t, f.host, "ip link set uplink master mst0")
		}
		config := asking(mode, f.dhcp(), `,"services":"both"`)
		f.worked(f.runFor(f.addDHCP("first", config), "DEL", debianPlugins))
		before := f.left()
		a, b := f.addDHCP("a", config), f.addDHCP("b", config)
		within := netip.MustParsePrefix("10.113.0.50/31")
		for _, p := range []*pod{a, b} {
			ips := p.ips()
			testkit.Require(t, len(ips) == 1 && within.Contains(ips[0]) && p.result.IPs[0].Address.Mask.String() == "ffffff00",
				"addresses %s", text(t, p.result))
			f.worked(f.runFor(p, "CHECK", debianPlugins))
		}
		f.throughRouter(a, beyond)
		f.reach(b.Namespace, a.Namespace, a.ips()[0])
		f.reach(f.host, a.Namespace, a.ips()[0])
		f.reach(a.Namespace, f.host, ownAddresses[0].Addr())
		f.calls(b, f.service("10.96.0.9:80", "tcp", a, a.ips()[0]))
		routes := testkit.Command(t, a.Namespace, "ip route show")
		testkit.Check(t, strings.Contains(routes, "203.0.113.0/24 via 10.113.0.1"),
			"the server's route is not among the pod's: %s", routes)
		c := f.pod("c", config)
		f.failed(f.runFor(c, "ADD", debianPlugins), types.ErrInternal, "no more tries")
		f.worked(f.runFor(b, "DEL", debianPlugins)) // tells the server
		f.worked(f.runFor(c, "ADD", debianPlugins))
		for _, p := range []*pod{a, b, c} {
			f.worked(f.runFor(p, "DEL", debianPlugins))
		}
		f.dropServices()
		f.same(before, "DEL")
	})
}

// TestDHCPFails runs ADD without a daemon, without a bridge, and with unusable leases. ADD
// undoes its steps and releases the leases.
func TestDHCPFails(t *testing.T) {
	t.Parallel()
	f := newSocketFixture(t)
	f.routed(routerAddresses[:1])
	ipam := f.dhcp()
	good := asking("macvlan", ipam, "")
	f.worked(f.runFor(f.addDHCP("first", good), "DEL", debianPlugins))
	before := f.left()
	nowhere := filepath.Join(t.TempDir(), "sock")
	lost := asking("macvlan", fmt.Sprintf(`{"type":"dhcp","daemonSocketPath":%q}`, nowhere), "")
	for _, row := range []struct {
		config []byte
		code   uint
		words  string
	}{
		{lost, types.ErrInternal, nowhere},
		{asking("bridge", ipam, ""), types.ErrInternal, `device "mst0"`},
		{bytes.Replace(good, []byte("10.113.0.2"), []byte("10.114.0.2"), 1), types.ErrInvalidNetworkConfig,
			"hostAddresses: 10.114.0.2"},
		{bytes.Replace(good, []byte("10.113.0.2"), []byte("10.114.0.2"), 1), types.ErrInvalidNetworkConfig,
			"hostAddresses: 10.114.0.2"},
		{bytes.Replace(good, []byte(`"uplink"`), []byte(`"missing"`), 1), types.ErrInvalidNetworkConfig, "missing"},
	} {
		p := f.pod("bad", row.config)
		f.failed(f.runFor(p, "ADD", debianPlugins), row.code, row.words)
		f.same(before, "ADD with "+row.words)
	}
	f.failed(f.runFor(f.pod("", bytes.Replace(lost, []byte("1.0.0"), []byte("1.1.0"), 1)), "STATUS", debianPlugins),
		codeNotAvailable, nowhere)
	// Two addresses are there still. One pod has a default route already, and gets none.
	a, b := f.addDHCP("a", good), f.pod("b", good)
	testkit.Command(t, b.Namespace, "ip route add default dev lo")
	f.worked(f.runFor(b, "ADD", debianPlugins))
	routes := testkit.Command(t, b.Namespace, "ip route show")
	testkit.Check(t, !strings.Contains(routes, "default via") && strings.Contains(routes, "10.113.0.0/24"),
		"routes of a pod that has a default route: %s", routes)
	for _, p := range []*pod{a, b} {
		f.worked(f.runFor(p, "DEL", debianPlugins))
	}
	f.same(before, "DEL")
}
