// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

const (
	// referenceDir is the directory of Debian's reference plugins (package
	// containernetworking-plugins). containerd always needs one of them, loopback.
	referenceDir = "/usr/lib/cni"
	// pluginDir and configDir are the machine's directories of plugins and networks. They
	// are fixed in containerd's client ctr.
	pluginDir = "/opt/cni/bin"
	configDir = "/etc/cni/net.d"
	uplink    = "uplink" // the machine's device that leads outside
)

// plugin is a CNI plugin with a configuration that gives a pod one address of each family.
type plugin struct {
	name string
	// program builds the plugin and returns its path, see build. It is nil for a plugin in referenceDir.
	program func() (string, error)
	version string   // the newest version of the specification that the plugin supports
	plugins []object // the plugin objects of the network's list
	// probe returns the feature that the kernel lacks, see testkit.RequireMode. It can be nil.
	probe     func() error
	apart     bool // whether host and pods cannot reach each other
	ports     bool // whether the list has capability portMappings
	loopback  bool // whether published ports work at ::1 too
	verbs     bool // whether the plugin itself implements STATUS and GC
	services  bool // whether pods reach services
	bandwidth bool // whether the list has capability bandwidth
	// slow is whether the host's new addresses can still be tentative when the plugin ends (duplicate address detection).
	slow   bool
	leases func(m *machine, network string) ([]string, error) // returns the reserved addresses
}

type object = map[string]any

func plugins() []plugin { return slices.Concat(references(), ours()) }

func references() []plugin {
	ipam := func(subnets ...string) object {
		var ranges [][]object
		for _, subnet := range subnets {
			ranges = append(ranges, []object{{"subnet": subnet}})
		}
		return object{"type": "host-local", "ranges": ranges, "routes": []object{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}}}
	}
	return []plugin{
		{name: "bridge", version: "1.0.0", leases: hostLocal, slow: true, ports: true, plugins: []object{
			{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": ipam("10.88.1.0/24", "fd00:88:1::/64")},
			{"type": "portmap", "capabilities": object{"portMappings": true}}}},
		{name: "ptp", version: "1.0.0", leases: hostLocal, slow: true, plugins: []object{
			{"type": "ptp", "ipam": ipam("10.88.2.0/24", "fd00:88:2::/64")}}},
		{name: "macvlan", version: "1.0.0", leases: hostLocal, apart: true, plugins: []object{
			{"type": "macvlan", "master": uplink, "mode": "bridge", "ipam": ipam("10.88.3.0/24", "fd00:88:3::/64")}}},
	}
}

// hostLocal lists the reservations of the reference plugin host-local: files with an address as their name.
func hostLocal(m *machine, network string) ([]string, error) {
	entries, err := os.ReadDir(m.path("/var/lib/cni/networks/" + network))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var addrs []string
	for _, entry := range entries {
		if _, err := netip.ParseAddr(entry.Name()); err == nil {
			addrs = append(addrs, entry.Name())
		}
	}
	return addrs, err
}

// network returns the name of the plugin's network. In podman a plain "bridge" has another meaning.
func (p plugin) network() string { return "test-" + p.name }

// conflist returns the network's configuration in a version of the specification.
func (p plugin) conflist(t testing.TB, version string) string {
	t.Helper()
	return string(testkit.Must(json.Marshal(object{"cniVersion": version, "name": p.network(), "plugins": p.plugins}))(t))
}

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
	paths := testkit.Must(filepath.Glob(filepath.Join(referenceDir, "*")))(t)
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
	got := testkit.Must(m.plugin.leases(m, m.plugin.network()))(t)
	texts := []string{}
	for _, addr := range want {
		texts = append(texts, addr.String())
	}
	slices.Sort(texts)
	slices.Sort(got)
	testkit.Check(t, slices.Equal(got, texts), "addresses %v are reserved, want %v", got, texts)
}
