// SPDX-License-Identifier: Apache-2.0

package cnibench

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"mustang/internal/cni"
	"mustang/internal/cni/install"
	"mustang/internal/cni/netconf"
	"mustang/internal/cni/server"
	"mustang/internal/distro"
	"mustang/internal/lab"
	"mustang/internal/netns"
)

const (
	mustangCNI  = "mustang-cni"
	mustangIPAM = "mustang"
	hostLocal   = "host-local"

	// Versions of the CNI spec, the newest that the plugins support.
	referenceVersion = "1.0.0"
	mustangVersion   = "1.1.0"
)

// Values of [Plugin.Services].
const (
	ServicesOff    = "off"
	ServicesSocket = "socket" // the default of mustang-cni
	ServicesBoth   = "both"   // at sockets and per packet
)

// Plugin is a CNI plugin with a network configuration.
type Plugin struct {
	Program  string         // the plugin's type
	Path     string         // the program's file; empty for the usual directory
	Network  string         // the network's name
	Subnet   netip.Prefix   // the network's range of addresses
	Settings map[string]any // in addition to the settings of all plugins
	Gateway  string         // the place in the lab that has the subnet's first address
	Services string         // how mustang-cni makes services reachable from pods; empty for other plugins
	Agent    bool           // starts a server like the one in mustang agent, which does the plugin's work
	// Endpoints makes pods endpoints of mustang-cni's datapath. Services per packet need it. Services at the socket
	// also need it if pods lack a device on the host: there the source guard needs programs both ways.
	Endpoints bool
}

// Reference returns a reference plugin whose gateway is the host. Network and Subnet are to be set.
func Reference(program string, settings map[string]any) Plugin {
	return Plugin{Program: program, Gateway: lab.Host, Settings: settings}
}

// Mustang returns mustang-cni with one of the values of [Plugin.Services]. Network and Subnet are to be set.
func Mustang(services string, settings map[string]any) Plugin {
	p := Reference(mustangCNI, map[string]any{"services": services})
	p.Services, p.Endpoints = services, services == ServicesBoth
	maps.Copy(p.Settings, settings)
	return p
}

// HasServices reports whether pods reach services.
func (p *Plugin) HasServices() bool {
	return p.Services == ServicesSocket || p.Services == ServicesBoth
}

const referencePackage = "containernetworking-plugins"

// referenceDirs has the directories of the reference plugins: Debian and Arch, Fedora and Alpine, nodes of Kubernetes.
func referenceDirs() []string { return []string{"/usr/lib/cni", "/usr/libexec/cni", "/opt/cni/bin"} }

// Probe returns the reason why the plugin's program cannot be called here, nil if it can.
func (p *Plugin) Probe() error {
	_, err := p.executable()
	return err
}

func (p *Plugin) executable() (string, error) {
	if p.Program != mustangCNI {
		path, err := distro.Find(p.Program, referencePackage, referenceDirs()...)
		if err == nil {
			_, err = distro.Find(hostLocal, referencePackage, referenceDirs()...)
		}
		return cmp.Or(p.Path, path), err
	}
	path := p.Path
	if path == "" {
		own, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find this executable: %w", err)
		}
		path = filepath.Join(filepath.Dir(own), mustangCNI)
	}
	if info, err := os.Stat(path); err != nil || info.Mode()&0o111 == 0 {
		return "", &distro.MissingError{Name: path, Remedy: "make build"}
	}
	return path, nil
}

// config returns the network configuration as a runtime passes it; previous is the result of ADD, nil for ADD itself.
func (p *Plugin) config(dirs lab.PluginDirs, previous json.RawMessage) ([]byte, error) {
	ipam := map[string]any{"type": mustangIPAM, "ranges": [][]map[string]string{{{"subnet": p.Subnet.String()}}}}
	config := map[string]any{"cniVersion": mustangVersion, "name": p.Network, "type": p.Program, "ipam": ipam}
	if p.Program != mustangCNI {
		config["cniVersion"], ipam["type"] = referenceVersion, hostLocal
		ipam["dataDir"] = filepath.Join(dirs.State, hostLocal)
		ipam["routes"] = []map[string]string{{"dst": "0.0.0.0/0"}}
	}
	maps.Copy(config, p.Settings)
	if previous != nil {
		config["prevResult"] = previous
	}
	return json.Marshal(config)
}

func (p *Plugin) environment(executable string, dirs lab.PluginDirs) []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "CNI_IFNAME=" + lab.IfName}
	if p.Program != mustangCNI {
		return append(env, "CNI_PATH="+strings.Join(referenceDirs(), ":"))
	}
	socket, own := "none", pluginIn(dirs)
	if p.Agent {
		socket = socketIn(dirs)
	}
	env = append(env, "CNI_PATH="+filepath.Dir(executable), server.SocketVariable+"="+socket,
		"MUSTANG_CNI_STATE_DIR="+own.StateDir, "MUSTANG_CNI_RUN_DIR="+own.RunDir, "MUSTANG_BPF_ROOT="+own.BPFRoot)
	if dirs.Cgroup != "" {
		env = append(env, "MUSTANG_CNI_CGROUP="+dirs.Cgroup)
	}
	return env
}

func (p *Plugin) gatewayAddress() netip.Addr { return p.Subnet.Addr().Next() }
func clientIn(dirs lab.PluginDirs) string    { return filepath.Join(dirs.Run, "bin", mustangCNI) }
func socketIn(dirs lab.PluginDirs) string    { return filepath.Join(dirs.Run, "agent", "cni.sock") }

func pluginIn(dirs lab.PluginDirs) cni.Plugin {
	return cni.Plugin{
		StateDir: filepath.Join(dirs.State, "mustang"), RunDir: filepath.Join(dirs.Run, "mustang"), BPFRoot: dirs.BPFRoot,
		Cgroup: dirs.Cgroup,
	}
}

// agent is the part of mustang agent that does the plugin's work.
type agent struct {
	adds atomic.Int64 // that it has done since the last check
	stop func()
}

func startAgent(host *netns.Namespace, dirs lab.PluginDirs, program string) (*agent, error) {
	client := clientIn(dirs)
	if err := os.MkdirAll(filepath.Dir(client), 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(client, install.Client(), 0o700); err != nil {
		return nil, err
	}
	if err := os.Symlink(program, filepath.Join(filepath.Dir(client), netconf.FullPlugin)); err != nil {
		return nil, err
	}
	a := &agent{}
	s, err := server.Listen(server.Options{
		Socket: socketIn(dirs), Host: host, Plugin: pluginIn(dirs),
		Observe: func(verb string, _ time.Duration, failed bool) {
			if verb == verbAdd && !failed {
				a.adds.Add(1)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	a.stop = func() {
		cancel()
		running.Wait()
	}
	return a, nil
}
