// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"mustang/internal/service"
)

// backend returns a backend at a port of the address.
func backend(addr netip.AddrPort, port uint16, state service.State, weight uint16) service.Backend {
	return service.Backend{Addr: netip.AddrPortFrom(addr.Addr(), port), State: state, Weight: weight}
}

// wantBlocks counts the rows of look-up tables.
func wantBlocks(t *testing.T, d *Datapath, want int) {
	t.Helper()
	n := 0
	for _, err := range d.objects.LookUp.All() {
		succeed(t, err)
		n++
	}
	failIf(t, n != want, "%d rows of look-up tables, want %d", n, want)
}
