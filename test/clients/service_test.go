// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"net/netip"
	"testing"

	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// servicePort is that of all services' cluster IPs.
const servicePort = 80

// serve has services lead to a pod, by the command mustang, and returns their
// cluster IPs, one of each family. There are as many pods with services as numbers.
func (m *machine) serve(t testing.TB, number int, to pod) []netip.AddrPort {
	t.Helper()
	var services []netip.AddrPort
	for i, addr := range to.addrs {
		ip := netip.MustParseAddr([]string{fmt.Sprintf("10.96.0.%d", number), fmt.Sprintf("fd00:96::%x", number)}[i])
		service := netip.AddrPortFrom(ip, servicePort)
		for network := range payloads {
			backend := testkit.Echo(t, to.ns, network, netip.AddrPortFrom(addr, 0).String())
			m.mustRun(t, "mustang", "svc", "add", "--protocol="+network, "--service="+service.String(), "--backend="+backend.String())
		}
		services = append(services, service)
	}
	return services
}

// giveMustang gives the machine the command mustang.
func (m *machine) giveMustang(t testing.TB) {
	t.Helper()
	m.give(t, built(t, mustangProgram))
}

// checkServices reaches services from a namespace.
func checkServices(t testing.TB, from *netns.Namespace, services ...netip.AddrPort) {
	t.Helper()
	for _, service := range services {
		for network := range payloads {
			if _, err := testkit.RoundTrip(t, from, network, service.String(), []byte("mustang")); err != nil {
				t.Errorf("service: %v", err)
			}
		}
	}
}
