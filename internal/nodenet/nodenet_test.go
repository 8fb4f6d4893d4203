// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"fmt"
	"testing"
)

// TestReach has pods of three nodes reach each other in each way, in each family.
func TestReach(t *testing.T) {
	for _, k := range []kind{
		{routing: Native}, {routing: Native, family: "ipv4"}, {routing: Native, family: "ipv6"},
		{routing: Auto}, {routing: VXLAN},
		{routing: Auto, routed: true}, {routing: Auto, routed: true, family: "ipv4"}, {routing: Auto, routed: true, family: "ipv6"},
	} {
		t.Run(fmt.Sprint(k.routing, "/", k.family, "/", k.routed), func(t *testing.T) {
			k.nodes = 3
			c := newCluster(t, k)
			before := c.state(c.nodes[0])
			c.apply()
			c.reach("first")
			for _, n := range c.nodes {
				c.must(n.network.Remove())
			}
			if after := c.state(c.nodes[0]); after != before {
				t.Errorf("before\n%s\nafter\n%s", before, after)
			}
		})
	}
}
