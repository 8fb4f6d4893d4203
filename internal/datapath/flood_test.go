// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net"
	"testing"
	"time"

	"mustang/internal/policy"
	"mustang/internal/testkit"
)

// TestNodeReachesFloodedPods has the host reach the pods of a bridge that floods what the host sends: to groups, as neighbour solicitations,
// and to MAC addresses that it does not know. All copies but the last have no socket. One pod has a policy, which lets the node in.
func TestNodeReachesFloodedPods(t *testing.T) {
	d, n := openTest(t), bridged(t)
	n.run(t, "-n HOST link add vc type veth peer name spare\n-n HOST link set vc master br0 up\n-n HOST link set spare up") // the last port
	for i, ns := range n.pods {
		pod := &policy.Pod{Namespace: "default", Name: string(rune('a' + i)), Labels: map[string]string{"app": string(rune('a' + i))}}
		must2(d.Endpoints().Put(t.Context(), EndpointSpec{Namespace: ns, IfName: "eth0", Host: n.host, Pod: pod}))(t)
	}
	applyPolicies(t, d, onlyOutsideToA)
	before := counts(t, d)
	var pods []net.PacketConn
	for i, addresses := range [2][2]string{{podA4, podA6}, {podB4, podB6}} {
		for _, addr := range addresses {
			pods = append(pods, listenIn(t, n.pods[i], addr))
		}
	}
	for _, ageing := range []string{"30000", "0"} { // 0: the bridge knows no MAC address
		n.run(t, "-n HOST link set br0 type bridge ageing_time "+ageing)
		for i, pod := range pods {
			n.run(t, "-n HOST neigh flush dev br0\n-n HOST -6 neigh flush dev br0")
			gateway := [2]string{gateway4, gateway6}[i%2]
			testkit.Eventually(t, 5*time.Second, func() error {
				if err := sendUDP(n.host, gateway, pod); err != nil {
					return fmt.Errorf("host to %s, ageing time %s: %w", pod.LocalAddr(), ageing, err)
				}
				return nil
			})
		}
	}
	if dropped := delta(t, d, before)["drop_source"]; dropped != 0 {
		t.Errorf("drop_source: %d", dropped)
	}
}
