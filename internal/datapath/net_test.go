// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"os/exec"
	"strings"
	"testing"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// network is a host with two pods.
type network struct {
	host *netns.Namespace
	pods [2]*netns.Namespace
	// relayed is whether the host's device and the pod's are joined by a program only.
	relayed [2]bool
	// segment is a device of the host, if the pods' own devices are to be used whatever their kind.
	segment string
	// ovsdb is the socket of the host's Open vSwitch; and whether that switches packets itself.
	ovsdb       string
	inUserSpace bool
}

// Addresses of the pods and their gateways.
const (
	podA4, podB4         = "192.168.10.10", "192.168.10.11"
	podA6, podB6         = "fd00:10::a", "fd00:10::b"
	gateway4, gateway6   = "192.168.10.1", "fd00:10::1"
	service4, service6   = "10.96.0.100", "fd00:96::100"
	servicePort, podPort = "5201", "8080"
)

// run executes one command with ip(8) for each line; HOST, A and B stand for the namespaces.
func (n network) run(t testing.TB, script string) {
	t.Helper()
	names := strings.NewReplacer("HOST", n.host.Name(), "PODA", n.pods[0].Name(), "PODB", n.pods[1].Name())
	for line := range strings.Lines(names.Replace(script)) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
}

func newNetwork(t testing.TB) network {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "ip")
	n := network{host: testkit.Namespace(t, "host")}
	n.pods[0], n.pods[1] = testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		succeed(t, rtnl.In(n.host).SetSysctl(key, "1"))
	}
	return n
}

// routed pods hang off veths, and the host routes between them.
func routed(t testing.TB) network {
	n := newNetwork(t)
	n.run(t, `
		-n HOST link add va type veth peer name eth0 netns PODA
		-n HOST link add vb type veth peer name eth0 netns PODB
		-n HOST addr add `+gateway4+`/32 dev lo
		-n HOST addr add `+gateway6+`/128 dev lo
		-n PODA addr add `+podA4+`/32 dev eth0
		-n PODA addr add `+podA6+`/128 dev eth0 nodad
		-n PODB addr add `+podB4+`/32 dev eth0
		-n PODB addr add `+podB6+`/128 dev eth0 nodad
		-n HOST addr add fe80::1/64 dev va nodad
		-n HOST addr add fe80::1/64 dev vb nodad
		-n PODA link set eth0 up
		-n PODB link set eth0 up
		-n HOST link set va up
		-n HOST link set vb up
		-n HOST route add `+podA4+` dev va
		-n HOST route add `+podB4+` dev vb
		-n HOST route add `+podA6+` dev va
		-n HOST route add `+podB6+` dev vb`)
	for _, device := range []string{"va", "vb"} {
		succeed(t, rtnl.In(n.host).SetSysctl("net/ipv4/conf/"+device+"/proxy_arp", "1"))
	}
	for _, pod := range []string{"PODA", "PODB"} {
		n.run(t, `
			-n `+pod+` route add `+gateway4+` dev eth0
			-n `+pod+` route add default via `+gateway4+`
			-n `+pod+` -6 route add default via fe80::1 dev eth0`)
	}
	return n
}

// bridged pods hang off a bridge with the gateway's addresses.
func bridged(t testing.TB) network {
	n := newNetwork(t)
	n.run(t, `
		-n HOST link add br0 type bridge forward_delay 0 stp_state 0
		-n HOST addr add `+gateway4+`/24 dev br0
		-n HOST addr add `+gateway6+`/64 dev br0 nodad
		-n HOST link set br0 up
		-n HOST link add va type veth peer name eth0 netns PODA
		-n HOST link add vb type veth peer name eth0 netns PODB
		-n HOST link set va master br0 up
		-n HOST link set vb master br0 up`)
	n.onLink(t)
	return n
}

// slaves are macvlans over one end of a veth, with one for the host.
func slaves(t testing.TB) network {
	n := newNetwork(t)
	n.run(t, `
		-n HOST link add up0 type veth peer name up1
		-n HOST link set up0 up
		-n HOST link set up1 up
		-n HOST link add mst-host link up0 type macvlan mode bridge
		-n HOST addr add `+gateway4+`/24 dev mst-host
		-n HOST addr add `+gateway6+`/64 dev mst-host nodad
		-n HOST link set mst-host up
		-n HOST link add link up0 name eth0 netns PODA type macvlan mode bridge
		-n HOST link add link up0 name eth0 netns PODB type macvlan mode bridge`)
	n.onLink(t)
	return n
}

// onLink gives the pods their addresses in the gateway's network.
func (n network) onLink(t testing.TB) {
	t.Helper()
	n.run(t, `
		-n PODA addr add `+podA4+`/24 dev eth0
		-n PODA addr add `+podA6+`/64 dev eth0 nodad
		-n PODB addr add `+podB4+`/24 dev eth0
		-n PODB addr add `+podB6+`/64 dev eth0 nodad
		-n PODA link set eth0 up
		-n PODB link set eth0 up
		-n PODA route add default via `+gateway4+`
		-n PODB route add default via `+gateway4+`
		-n PODA -6 route add default via `+gateway6+`
		-n PODB -6 route add default via `+gateway6)
}

// attachBoth makes both pods endpoints.
func (n network) attachBoth(t testing.TB, d *Datapath) {
	t.Helper()
	for i := range n.pods {
		endpoints, change := must2(d.Endpoints().Put(t.Context(), n.attachment(i)))(t)
		if change != Added || len(endpoints) != 2 {
			t.Fatalf("Put: %v, %v; want two addresses added", change, endpoints)
		}
	}
}
