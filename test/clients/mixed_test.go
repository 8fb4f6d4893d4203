// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// TestMixed adds a pod on a network of each link mode to one host. The pods reach each
// other, the host, a service of each pod, and the published ports of some.
func TestMixed(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	networks := mixed(t)
	m.install(t, networks[0])
	m.giveMustang(t)
	second := m.wire(t, "uplink2")
	var pods []pod
	var clients []*libcniClient
	for i, p := range networks {
		if strings.HasPrefix(p.link(), "ipvlan") {
			p.plugins[0]["parent"] = second // macvlan uses the first
		}
		ns := testkit.Namespace(t, p.link())
		c := newLibcni(t, m, p)
		if i%2 == 0 { // with packet programs too
			c.published, c.hostPort = ns, hostPort+uint16(i)
		}
		clients, pods = append(clients, c), append(pods, c.add(t, ns))
	}
	for i, to := range pods {
		services := m.serve(t, i+1, to)
		for _, from := range pods {
			checkServices(t, from.ns, services...)
		}
		if c := clients[i]; c.published != nil {
			checkMixedPort(t, c, to, pods)
		}
	}
	checkMesh(t, m, pods)
	for i, c := range clients {
		err := c.check(pods[i].ns)
		testkit.Check(t, err == nil, "CHECK: %v", err)
		err = c.del(c.conf(pods[i].ns))
		testkit.Check(t, err == nil, "DEL: %v", err)
		left, err := networks[i].leases(m, networks[i].network())
		testkit.Check(t, err == nil && len(left) == 0, "addresses %v are reserved still, %v", left, err)
	}
}

// checkMixedPort connects to a pod's published port from pods, the host and outside.
func checkMixedPort(t *testing.T, c *libcniClient, to pod, from []pod) {
	t.Helper()
	for i, addr := range to.addrs {
		for network := range payloads {
			testkit.Echo(t, to.ns, network, netip.AddrPortFrom(addr, podPort).String())
		}
		target := netip.AddrPortFrom(hostAddrs[i].Addr(), c.hostPort)
		checkServices(t, c.m.outside, target)
		checkServices(t, c.m.host, target)
		for _, p := range from {
			checkServices(t, p.ns, target)
		}
	}
}

// mixed returns the networks that one host can have at once. It has one ipvlan mode, since
// the host's own ipvlan device is shared by all pods.
func mixed(t *testing.T) []plugin {
	t.Helper()
	var out []plugin
	for _, p := range ours() {
		switch {
		case p.link() == "ipvlan-l3" || p.link() == "ipvlan-l3s":
		case p.probe() != nil:
			testkit.NeedsOther(t)
		default:
			out = append(out, p)
		}
	}
	return out
}

func (p plugin) link() string { return fmt.Sprint(p.plugins[0]["link"]) }

// checkMesh sends from the host and each pod to all pods, and from each pod to the host.
// No source address changes on the way.
func checkMesh(t *testing.T, m *machine, pods []pod) {
	t.Helper()
	host := pod{ns: m.host, addrs: []netip.Addr{hostAddrs[0].Addr(), hostAddrs[1].Addr()}}
	try := func(from pod, network string, i int, server netip.AddrPort) {
		t.Helper()
		peer, err := testkit.RoundTrip(t, from.ns, network, server.String(), make([]byte, 1200))
		if err != nil {
			t.Error(err)
		} else if from.ns != m.host && peer.Addr() != from.addrs[i] {
			t.Errorf("%s from %s to %s: the server sees %s", network, from.ns.Name(), server, peer)
		}
	}
	all := append([]pod{host}, pods...)
	for _, to := range all {
		for i, addr := range to.addrs {
			for network := range payloads {
				server := testkit.Echo(t, to.ns, network, netip.AddrPortFrom(addr, 0).String())
				for _, from := range all {
					try(from, network, i, server)
				}
			}
		}
	}
}

const servicePort = 80 // the port of all services

// serve adds services with a pod as their backend, with the command mustang, and returns their cluster IPs, one of
// each family. Each pod has its own number.
func (m *machine) serve(t testing.TB, number int, to pod) []netip.AddrPort {
	t.Helper()
	var services []netip.AddrPort
	for i, addr := range to.addrs {
		ip := netip.MustParseAddr([]string{fmt.Sprintf("10.96.0.%d", number), fmt.Sprintf("fd00:96::%x", number)}[i])
		service := netip.AddrPortFrom(ip, servicePort)
		for network := range payloads {
			backend := testkit.Echo(t, to.ns, network, netip.AddrPortFrom(addr, 0).String())
			m.mustRun(t, "mustang", "svc", "add", "--protocol="+network, "--service="+service.String(), "--backend="+
				backend.String())
		}
		services = append(services, service)
	}
	return services
}

func (m *machine) giveMustang(t testing.TB) {
	t.Helper()
	m.give(t, built(t, mustangProgram))
}

func checkServices(t testing.TB, from *netns.Namespace, services ...netip.AddrPort) {
	t.Helper()
	for _, service := range services {
		for network := range payloads {
			_, err := testkit.RoundTrip(t, from, network, service.String(), []byte("mustang"))
			testkit.Check(t, err == nil, "service: %v", err)
		}
	}
}
