// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// Addresses of the wire between a machine and the namespace outside.
var (
	hostAddrs    = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}
	outsideAddrs = []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24"), netip.MustParsePrefix("2001:db8::2/64")}
)

// eachPlugin runs a test with each plugin, on a machine with the plugin, its network and
// some programs. It fails if an address is still reserved at the end.
func eachPlugin(t *testing.T, test func(t *testing.T, m *machine), programs ...string) {
	t.Helper()
	t.Parallel()
	if _, err := os.Stat(referenceDir); err != nil {
		testkit.Skip(t, "needs the Debian package containernetworking-plugins")
	}
	for _, p := range plugins() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			if p.probe != nil {
				testkit.RequireMode(t, p.probe())
			}
			m := newMachine(t)
			m.install(t, p)
			m.give(t, slices.Concat(programs, []string{"iptables", "ip6tables"})...) // the reference plugins run these two
			test(t, m)
			checkLeases(t, m)
		})
	}
}

// configure writes the configuration of the network, in a version of the specification.
func (m *machine) configure(t testing.TB, version string) {
	t.Helper()
	m.write(t, filepath.Join(configDir, "10-"+m.plugin.network()+".conflist"), m.plugin.conflist(t, version))
}

// install installs the plugin, its network and a wire to the namespace outside.
func (m *machine) install(t testing.TB, p plugin) {
	t.Helper()
	m.plugin = p
	m.outside = testkit.Namespace(t, "outside")
	m.wire(t, uplink)
	for ns, addrs := range map[*netns.Namespace][]netip.Prefix{m.host: hostAddrs, m.outside: outsideAddrs} {
		testkit.Succeed(t, rtnl.In(ns).Configure(uplink, rtnl.DeviceConfig{Up: true, Addresses: addrs}))
	}
	m.configure(t, p.version)
	testkit.Succeed(t, os.MkdirAll(m.path(pluginDir), 0o755))
	paths, err := filepath.Glob(filepath.Join(referenceDir, "*"))
	testkit.Succeed(t, err)
	if p.program != nil {
		paths = append(paths, built(t, p.program))
	}
	for _, path := range paths {
		testkit.Succeed(t, os.Symlink(path, m.path(filepath.Join(pluginDir, filepath.Base(path)))))
	}
}

// wire connects the machine and the namespace outside with a veth pair. Both devices have that name, which is returned.
func (m *machine) wire(t testing.TB, name string) string {
	t.Helper()
	if err := rtnl.AddVeth(rtnl.VethEnd{Namespace: m.host, Name: name}, rtnl.VethEnd{Namespace: m.outside, Name: name},
		1500); err != nil {
		t.Fatal(err)
	}
	for _, ns := range []*netns.Namespace{m.host, m.outside} {
		testkit.Succeed(t, rtnl.In(ns).Configure(name, rtnl.DeviceConfig{Up: true}))
	}
	return name
}

// checkLeases fails the test unless exactly these addresses are reserved.
func checkLeases(t testing.TB, m *machine, want ...netip.Addr) {
	t.Helper()
	got, err := m.plugin.leases(m, m.plugin.network())
	testkit.Succeed(t, err)
	texts := []string{}
	for _, addr := range want {
		texts = append(texts, addr.String())
	}
	slices.Sort(texts)
	slices.Sort(got)
	testkit.Check(t, slices.Equal(got, texts), "addresses %v are reserved, want %v", got, texts)
}
