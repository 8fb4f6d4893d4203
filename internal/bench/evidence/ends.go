// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"net/netip"
	"slices"
)

// Ends are what is known of the ends of a path in a cluster.
type Ends struct {
	// Client are the addresses of the client's pod; empty if any address of its node will do.
	Client []netip.Addr
}

// checkEnds checks the addresses that both ends of a path in a cluster see. The client's peer is the server itself where a
// program translates the address in connect(), and the server's peer another address than the client's where one is masqueraded.
func (c *sampleCheck) checkEnds() {
	m := c.measurement
	if m.ClientPeer != c.Connect && m.ClientPeer != c.Listen {
		c.add("the client's peer is %s, want %s", m.ClientPeer, c.Connect)
	}
	if m.ServerLocal != c.Listen {
		c.add("the server's address is %s, want %s", m.ServerLocal, c.Listen)
	}
	if local := m.ClientLocal.Addr(); len(c.Ends.Client) > 0 && !slices.Contains(c.Ends.Client, local) {
		c.add("the client's address is %s, want one of %v", local, c.Ends.Client)
	}
}
