// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"mustang/internal/cni"
	"mustang/internal/cni/netconf"
	"mustang/internal/ipam"
	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

// parallel is the default of -parallel. Most of the time the tests wait.
const parallel = "4"

// TestMain is also the entry point of a machine's first process.
func TestMain(m *testing.M) {
	if os.Getenv(machineVariable) != "" {
		os.Exit(firstProcess())
	}
	if err := errors.Join(clearCgroups(), clearBuilds(), flag.Set("test.parallel", parallel)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	code := testkit.CheckLeaks(m)
	if dir, err := buildDir(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// mustangCNI builds our plugin.
var mustangCNI = sync.OnceValues(func() (string, error) {
	return build(netconf.PluginType, "mustang/cmd/"+netconf.PluginType)
})

// ours returns our plugin with each link mode that needs no Open vSwitch, and once with packet programs too.
func ours() []plugin {
	var out []plugin
	for _, mode := range podlink.Modes() {
		if mode.Traits().Needs == podlink.NeedsNothing || mode.Traits().Needs == podlink.NeedsUplink {
			out = append(out, mustang(mode, len(out), netconf.ServicesSocket))
		}
	}
	both := mustang(podlink.Modes()[0], len(out), netconf.ServicesBoth)
	both.name += "-" + netconf.ServicesBoth
	return append(out, both)
}

// mustang returns our plugin with a link mode. number selects its subnets.
func mustang(mode podlink.Mode, number int, services string) plugin {
	object4 := object{"subnet": fmt.Sprintf("10.89.%d.0/24", number)}
	object6 := object{"subnet": fmt.Sprintf("fd00:89:%x::/64", number)}
	return plugin{
		name: "mustang-" + mode.Name(), program: mustangCNI, version: "1.1.0", leases: builtIn, probe: mode.Probe,
		ports: true, loopback: true, verbs: true, services: true,
		bandwidth: mode.Traits().HostSide, plugins: []object{{
			"type": netconf.PluginType, "link": mode.Name(), "parent": uplink, "services": services,
			"capabilities": object{"portMappings": true, "bandwidth": mode.Traits().HostSide},
			"ipam":         object{"type": netconf.IPAMType, "ranges": [][]object{{object4}, {object6}}},
		}},
	}
}

// builtIn lists the reservations of our plugin.
func builtIn(m *machine, network string) ([]string, error) {
	leases, err := ipam.Open(m.path(filepath.Join(cni.DefaultStateDir, network))).Leases()
	var addrs []string
	for _, lease := range leases {
		addrs = append(addrs, lease.Address.String())
	}
	return addrs, err
}

// TestVersions adds pods with a configuration in each version of the specification that
// runtimes still use. The result has the same version.
func TestVersions(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	p := ours()[0]
	m.install(t, p)
	for _, version := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			p := p
			p.version = version
			c, ns := newLibcni(t, m, p), testkit.Namespace(t, "pod")
			c.published = ns
			checkPorts(t, m, c.add(t, ns))
			testkit.Succeed(t, c.do(func(context.Context) error {
				cached, err := c.cni.GetNetworkListCachedResult(c.list, c.conf(ns))
				if err == nil && cached.Version() != version {
					t.Errorf("the result is of version %s", cached.Version())
				}
				return err
			}))
			if version >= "0.4.0" {
				err := c.check(ns)
				testkit.Check(t, err == nil, "CHECK: %v", err)
			}
			err := c.del(c.conf(ns))
			testkit.Check(t, err == nil, "DEL: %v", err)
			checkLeases(t, m)
		})
	}
}
