// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"mustang/internal/policy"
	"mustang/internal/rtnl"
)

// TestModeOfIpvlan has root in a pod of ipvlan-l2 change the mode to layer 3, and send as the node and as another pod, as nobody known, to a pod
// behind a veth and to the host.
func TestModeOfIpvlan(t *testing.T) {
	for _, m := range linkModes() {
		if m.name != "ipvlan-l2" {
			continue
		}
		f := newForger(t, m)
		f.labelled(t, f.d)
		veth := f.addVeth(t)
		pod := &policy.Pod{Namespace: "default", Name: "c", Labels: map[string]string{"app": "a"}}
		must2(f.d.Endpoints().Put(t.Context(), EndpointSpec{Namespace: veth, IfName: "eth0", Host: f.network.host, Pod: pod}))(t)
		applyPolicies(t, f.d, onlyOutsideToA)
		f.run(t, "-n HOST addr add "+hostOut[0].String()+"/24 dev up0\n-n HOST addr add "+hostOut[1].String()+"/64 dev up0 nodad")
		for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			succeed(t, rtnl.In(f.network.host).SetSysctl(key, "1"))
		}
		strangers := f.strangers(t)
		if out, err := exec.Command("ip", "-n", f.pods[1].Name(), "link", "set", "eth0", "type", "ipvlan", "mode", "l3").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for name, victim := range map[string]net.PacketConn{
			"a veth": listenIn(t, veth, routedPod[1].String()), "the host": listenIn(t, f.network.host, hostOut[1].String()),
		} {
			forged := []string{podA6}
			if name == "a veth" {
				forged = append(forged, gateway6)
			}
			for _, from := range forged {
				for _, way := range strangers {
					t.Run(fmt.Sprintf("to %s from %s, %s", name, from, way.name), func(t *testing.T) {
						f.own = way.mac
						_ = sendFrame(way.ns, way.index, f.datagram(netip.MustParseAddr(from), victim, "forged"), false)
						_ = victim.SetReadDeadline(time.Now().Add(time.Second))
						if _, got, err := victim.ReadFrom(make([]byte, 100)); err == nil {
							t.Errorf("a packet from %s arrived", got)
						}
					})
				}
			}
		}
	}
}
