// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/datapath/conntrack"
	"mustang/internal/service"
)

// TestDirectHasNoService lists a connection to a service, and one that is direct.
func TestDirectHasNoService(t *testing.T) {
	client, frontend, pod := netip.MustParseAddrPort("10.0.0.1:4000"), netip.MustParseAddrPort("10.96.0.1:80"), netip.MustParseAddrPort("10.0.0.2:8080")
	var out strings.Builder
	if err := writeList(&out, "table", []conntrack.Connection{
		{Protocol: service.TCP, Client: client, Source: client, Service: frontend, Backend: pod, ServiceID: 1},
		{Protocol: service.TCP, Client: client, Source: client, Service: pod, Backend: pod},
	}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if got := strings.Fields(lines[1])[3]; got != frontend.String() {
		t.Errorf("service %q", got)
	}
	if got := strings.Fields(lines[2])[3]; got != "-" {
		t.Errorf("service %q of a direct connection", got)
	}
}
