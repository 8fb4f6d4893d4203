// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"net/netip"
	"testing"

	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// servicePort is the port of all services.
const servicePort = 80

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

// giveMustang adds the command mustang to the machine's programs.
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
