// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/testkit"
)

// TestForgedLeases adds pods with leases of a server that wants the host's packets for others: the host's routes stay, whatever the lease.
func TestForgedLeases(t *testing.T) {
	for _, mode := range []string{"macvlan", "bridge"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			dir, path := f.newFakeIPAM()
			f.routed(routerAddresses)
			if mode == "bridge" {
				testkit.Command(t, f.host, "ip link add mst0 type bridge")
			}
			config := strings.Replace(string(delegating(mode, `{"type":"`+fakeIPAM+`"}`)), `{"cniVersion"`, `{"hostAddresses":["10.113.0.2"],"cniVersion"`, 1)
			lease := func(name, address string) *pod {
				f.must(os.WriteFile(path+".result", []byte(`{"cniVersion":"1.1.0","ips":[{"address":"`+address+`","gateway":"10.113.0.1"}]}`), 0o600))
				return f.pod(name, []byte(config))
			}
			refused := func(addresses ...string) {
				for _, address := range addresses {
					f.failed(f.runFor(lease("a", address), "ADD", dir), types.ErrInternal, "want a prefix of")
				}
			}
			refused("10.113.0.60/0", "10.113.0.60/1", "192.0.2.2/0")
			f.worked(f.runFor(lease("first", "10.113.0.60/24"), "ADD", dir))
			refused("10.113.0.60/8", "10.113.0.60/23")
			routes := testkit.Command(t, f.host, "ip -4 route")
			for _, address := range []string{"192.0.2.2/32", "198.51.100.53/32", "10.113.0.1/32"} {
				p := lease("a", address)
				f.worked(f.runFor(p, "ADD", dir))
				if got := testkit.Command(t, f.host, "ip -4 route"); got != routes {
					t.Errorf("lease %s: routes of the host are\n%swant\n%s", address, got, routes)
				}
				f.worked(f.runFor(p, "DEL", dir))
			}
		})
	}
}
