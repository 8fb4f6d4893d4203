// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"mustang/internal/cni/netconf"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// dhcpTimeout bounds the start of a daemon.
const dhcpTimeout = 10 * time.Second

// dhcpAnswer bounds the answer of the server, which checks for two seconds whether the
// address is in use.
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

// dhcp has the machine outside give out addresses, and the host run the daemon of
// containernetworking's plugin. There are two addresses. It returns the network's key
// ipam.
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
	f.background(f.host, filepath.Join(debianPlugins, netconf.DHCPType), "daemon", "-socketpath", socket, "-timeout", dhcpAnswer.String(), "-resendmax", "1s")
	testkit.Eventually(f.t, dhcpTimeout, func() error {
		_, err := os.Stat(socket)
		return err
	})
	return fmt.Sprintf(`{"type":"dhcp","daemonSocketPath":%q}`, socket)
}

// asking is a network with addresses by DHCP.
func asking(mode, ipam, more string) []byte {
	return fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"net","type":"mustang-cni","link":%q,"parent":"uplink","hostAddresses":["10.113.0.2"],"ipam":%s%s}`,
		mode, ipam, more)
}

// addDHCP runs ADD in a process, as a runtime does.
func (f *fixture) addDHCP(id string, config []byte) *pod {
	f.t.Helper()
	p := f.pod(id, config)
	f.told(p, f.runFor(p, "ADD", debianPlugins))
	return p
}

// TestDHCP requests addresses from a server in the parent's network.
func TestDHCP(t *testing.T) {
	for _, mode := range []string{"macvlan", "bridge"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.plugin.Cgroup = testkit.Cgroup(t)
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
				if ips := p.ips(); len(ips) != 1 || !within.Contains(ips[0]) || p.result.IPs[0].Address.Mask.String() != "ffffff00" {
					t.Fatalf("addresses %s", text(t, p.result))
				}
				f.worked(f.runFor(p, "CHECK", debianPlugins))
			}
			f.throughRouter(a, beyond)
			f.reach(b.Namespace, a.Namespace, a.ips()[0])
			f.reach(f.host, a.Namespace, a.ips()[0])
			f.reach(a.Namespace, f.host, ownAddresses[0].Addr())
			f.calls(b, f.service("10.96.0.9:80", "tcp", a, a.ips()[0]))
			if routes := testkit.Command(t, a.Namespace, "ip route show"); !strings.Contains(routes, "203.0.113.0/24 via 10.113.0.1") {
				t.Errorf("the server's route is not among the pod's: %s", routes)
			}
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
}

// TestDHCPFails runs ADD without a daemon, without a bridge, and with unusable leases. ADD
// undoes its steps and releases the leases.
func TestDHCPFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.plugin.Cgroup = testkit.Cgroup(t)
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
		{bytes.Replace(good, []byte("10.113.0.2"), []byte("10.114.0.2"), 1), types.ErrInvalidNetworkConfig, "hostAddresses: 10.114.0.2"},
		{bytes.Replace(good, []byte("10.113.0.2"), []byte("10.114.0.2"), 1), types.ErrInvalidNetworkConfig, "hostAddresses: 10.114.0.2"},
		{bytes.Replace(good, []byte(`"uplink"`), []byte(`"missing"`), 1), types.ErrInvalidNetworkConfig, "missing"},
	} {
		p := f.pod("bad", row.config)
		f.failed(f.runFor(p, "ADD", debianPlugins), row.code, row.words)
		f.same(before, "ADD with "+row.words)
	}
	f.failed(f.runFor(f.pod("", bytes.Replace(lost, []byte("1.0.0"), []byte("1.1.0"), 1)), "STATUS", debianPlugins), codeNotAvailable, nowhere)
	// Two addresses are there still. One pod has a default route already, and gets none.
	a, b := f.addDHCP("a", good), f.pod("b", good)
	testkit.Command(t, b.Namespace, "ip route add default dev lo")
	f.worked(f.runFor(b, "ADD", debianPlugins))
	if routes := testkit.Command(t, b.Namespace, "ip route show"); strings.Contains(routes, "default via") || !strings.Contains(routes, "10.113.0.0/24") {
		t.Errorf("routes of a pod that has a default route: %s", routes)
	}
	for _, p := range []*pod{a, b} {
		f.worked(f.runFor(p, "DEL", debianPlugins))
	}
	f.same(before, "DEL")
}
