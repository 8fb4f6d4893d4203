// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"mustang/internal/lab"
)

// Programs of plugins.
const (
	mustangCNI = "mustang-cni"
	hostLocal  = "host-local"
)

// Versions of the CNI spec: the newest that each side's plugins speak.
const (
	referenceVersion = "1.0.0"
	mustangVersion   = "1.1.0"
)

// plugin is a CNI plugin with a network configuration.
type plugin struct {
	// program is the plugin's type.
	program string
	// path is where the program is; empty for the usual place.
	path    string
	network string
	subnet  netip.Prefix
	version string
	// settings are those of the plugin's own; ipam says who gives addresses.
	settings map[string]any
	ipam     string
	// gateway is the place in the lab that has the subnet's first address.
	gateway string
	// services says where our own plugin has pods reach services; empty for others.
	services string
}

// nodeLab is where plugins run.
func nodeLab() lab.Options { return lab.Options{Topology: lab.TopologyNode, Link: lab.LinkHost} }

func referenceBridge() plugin {
	return plugin{program: "bridge", version: referenceVersion, ipam: hostLocal, gateway: lab.Host,
		settings: map[string]any{"bridge": "cni0", "isGateway": true}}
}

func referencePTP() plugin {
	return plugin{program: "ptp", version: referenceVersion, ipam: hostLocal, gateway: lab.Host}
}

// referenceMacvlan has no device on the host, so what it reaches is beyond the
// uplink.
func referenceMacvlan() plugin {
	return plugin{program: "macvlan", version: referenceVersion, ipam: hostLocal, gateway: lab.Outside,
		settings: map[string]any{"master": lab.Uplink, "mode": "bridge"}}
}

// Where our own plugin has pods reach services.
const (
	servicesOff    = "off"
	servicesSocket = "socket" // which is the default
	servicesBoth   = "both"   // at sockets and per packet
)

// mustangPlugin is our own.
func mustangPlugin(link, services string) plugin {
	p := plugin{program: mustangCNI, version: mustangVersion, ipam: "mustang", gateway: lab.Host, services: services,
		settings: map[string]any{"link": link, "services": services}}
	switch link {
	case "macvlan":
		p.settings["parent"] = lab.Uplink
	case "bridge":
		p.settings["bridge"] = "mst-" + services
	}
	return p
}

// serves reports whether pods reach services.
func (p *plugin) serves() bool { return p.services == servicesSocket || p.services == servicesBoth }

// executable is the path of the plugin's program.
func (p *plugin) executable() (string, error) {
	path := p.path
	if p.program != mustangCNI {
		dir, err := lab.FindReferencePlugins(p.program, p.ipam)
		return cmp.Or(path, filepath.Join(dir, p.program)), err
	}
	if path == "" {
		own, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find this program: %w", err)
		}
		path = filepath.Join(filepath.Dir(own), mustangCNI)
	}
	if info, err := os.Stat(path); err != nil || info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("no program %s (make build puts it beside mustang)", path)
	}
	return path, nil
}

// probe returns why the plugin can't be called here, nil if nothing is known to be
// in the way.
func (p *plugin) probe() error {
	_, err := p.executable()
	return err
}

// config is the network configuration as a runtime passes it; previous is the
// result of ADD, nil for ADD itself.
func (p *plugin) config(dirs lab.PluginDirs, previous json.RawMessage) ([]byte, error) {
	ipam := map[string]any{"type": p.ipam, "ranges": [][]map[string]string{{{"subnet": p.subnet.String()}}}}
	if p.ipam == hostLocal {
		ipam["dataDir"] = filepath.Join(dirs.State, hostLocal)
		ipam["routes"] = []map[string]string{{"dst": "0.0.0.0/0"}}
	}
	config := map[string]any{"cniVersion": p.version, "name": p.network, "type": p.program, "ipam": ipam}
	for key, value := range p.settings {
		config[key] = value
	}
	if previous != nil {
		config["prevResult"] = previous
	}
	return json.Marshal(config)
}

// environment is what a plugin's process gets.
func (p *plugin) environment(executable string, dirs lab.PluginDirs) []string {
	plugins := filepath.Dir(executable)
	if p.ipam == hostLocal {
		plugins = lab.ReferencePlugins
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "CNI_PATH=" + plugins, "CNI_IFNAME=" + lab.IfName}
	if p.program != mustangCNI {
		return env
	}
	env = append(env, "MUSTANG_CNI_STATE_DIR="+filepath.Join(dirs.State, "mustang"),
		"MUSTANG_CNI_RUN_DIR="+filepath.Join(dirs.Run, "mustang"), "MUSTANG_BPF_ROOT="+dirs.BPFRoot)
	if dirs.Cgroup != "" {
		env = append(env, "MUSTANG_CNI_CGROUP="+dirs.Cgroup)
	}
	return env
}

// gatewayAddress is the subnet's first.
func (p *plugin) gatewayAddress() netip.Addr { return p.subnet.Addr().Next() }
