// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"testing"

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
	// uplink is the machine's device that leads outside.
	uplink = "uplink"
)

// plugin is a CNI plugin with a configuration that gives a pod one address of each family.
type plugin struct {
	name string
	// program builds the plugin and returns its path, see build. It is nil for a plugin in referenceDir.
	program func() (string, error)
	// version is the newest version of the specification that the plugin supports.
	version string
	// plugins are the plugin objects of the network's list.
	plugins []object
	// probe returns the feature that the kernel lacks, see testkit.RequireMode. It can be nil.
	probe func() error
	// apart is whether host and pods cannot reach each other.
	apart bool
	// ports is whether the list has capability portMappings.
	ports bool
	// loopback is whether published ports work at ::1 too.
	loopback bool
	// verbs is whether the plugin itself implements STATUS and GC.
	verbs bool
	// services is whether pods reach services.
	services bool
	// bandwidth is whether the list has capability bandwidth.
	bandwidth bool
	// slow is whether the host's new addresses can still be tentative when the plugin ends (duplicate address detection).
	slow bool
	// leases returns the reserved addresses.
	leases func(m *machine, network string) ([]string, error)
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
		{name: "ptp", version: "1.0.0", leases: hostLocal, plugins: []object{
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
	text, err := json.Marshal(object{"cniVersion": version, "name": p.network(), "plugins": p.plugins})
	testkit.Succeed(t, err)
	return string(text)
}
