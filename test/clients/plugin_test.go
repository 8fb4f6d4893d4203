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
)

const (
	// referenceDir is where Debian has the reference plugins (package
	// containernetworking-plugins). containerd needs one of them, loopback, whatever
	// plugin a network has.
	referenceDir = "/usr/lib/cni"
	// pluginDir and configDir are where a machine has plugins and networks: the places
	// that containerd's client ctr can't be told others of.
	pluginDir = "/opt/cni/bin"
	configDir = "/etc/cni/net.d"
	// uplink is the device of a machine that leads elsewhere.
	uplink = "uplink"
)

// plugin is a CNI plugin with a configuration that gives a pod one address of each
// family.
type plugin struct {
	name string
	// program builds the plugin and returns its path, see build; nil for one that is in
	// referenceDir.
	program func() (string, error)
	// version is the newest of the specification that the plugin knows.
	version string
	// plugins are the objects of the network's list.
	plugins []object
	// probe says what the kernel lacks, if not nil, see testkit.RequireMode.
	probe func() error
	// apart is whether the host can't reach the pods, nor they the host.
	apart bool
	// ports is whether the list has the capability portMappings.
	ports bool
	// loopback is whether published ports are those of ::1 too.
	loopback bool
	// verbs is whether the plugin itself has STATUS and GC.
	verbs bool
	// services is whether pods reach services.
	services bool
	// bandwidth is whether the list has that capability.
	bandwidth bool
	// slow is whether the host's new addresses may not be ready when the plugin ends,
	// for the kernel looks for duplicates of them still.
	slow bool
	// leases returns the addresses that are reserved.
	leases func(m *machine, network string) ([]string, error)
}

type object = map[string]any

// plugins are all that the tests run with.
func plugins() []plugin { return slices.Concat(references(), ours()) }

// references are Debian's plugins.
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

// hostLocal lists the reservations of the reference plugin host-local, which are
// files with an address as their name.
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

// network is the name of the plugin's network. A plain "bridge" is something else to
// podman.
func (p plugin) network() string { return "test-" + p.name }

// conflist is the network's configuration in a version of the specification.
func (p plugin) conflist(t testing.TB, version string) string {
	t.Helper()
	text, err := json.Marshal(object{"cniVersion": version, "name": p.network(), "plugins": p.plugins})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
