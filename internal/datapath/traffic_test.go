// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"crypto/rand"
	"net"
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

// family is the addresses of one IP version.
type family struct{ name, pod, client, service, gateway string }

func families() []family {
	return []family{{"ipv4", podA4, podB4, service4, gateway4}, {"ipv6", podA6, podB6, service6, gateway6}}
}

// TestTraffic sends real traffic through each way of plugging in pods.
func TestTraffic(t *testing.T) {
	for _, mode := range []struct {
		name      string
		make      func(testing.TB) network
		delivered string // the counter of packets to another pod
		untouched bool   // packets between pod addresses are left to the kernel
	}{
		{"veth", routed, "redirect_peer", false},
		{"bridge", bridged, "redirect_peer", false},
		{"macvlan", slaves, "l2_delivered", true},
		{"segment", switched, "l2_delivered", true},
		{"ipvlan-l2", plugged("ipvlan-l2"), "l2_delivered", true},
		{"ipvlan-l3", plugged("ipvlan-l3"), "l2_delivered", true},
		{"ipvlan-l3s", plugged("ipvlan-l3s"), "l2_delivered", true},
		{"netkit", plugged("netkit"), "redirect_device", false},
		{"netkit-l2", plugged("netkit-l2"), "redirect_device", false},
		{"ovs-veth", plugged("ovs-veth"), "redirect_peer", false},
		{"ovs-internal", plugged("ovs-internal"), "l2_delivered", true},
		{"tap", plugged("tap"), "redirect_device", false},
		{"tun", plugged("tun"), "redirect_device", false},
		{"veth without offload", plain(routed), "redirect_peer", false},
		{"macvlan without offload", plain(slaves), "l2_delivered", true},
	} {
		t.Run(mode.name, func(t *testing.T) {
			n, d := mode.make(t), openTest(t)
			n.attachBoth(t, d)
			if n.segment != "" {
				mode.delivered, mode.untouched = "l2_delivered", true
			}
			for _, f := range families() {
				for _, protocol := range []string{"tcp", "udp"} {
					t.Run(f.name+"/"+protocol, func(t *testing.T) {
						testTraffic(t, trafficCase{n, d, f, protocol, mode.delivered, mode.untouched})
					})
				}
			}
			wantNoDrops(t, d)
			wantAllCounted(t, d)
			testAgain(t, n, d)
		})
	}
}

func wantNoDrops(t *testing.T, d *Datapath) {
	t.Helper()
	for name, count := range counts(t, d) {
		if strings.HasPrefix(name, "drop_") && count != 0 {
			t.Errorf("%s = %d, want nothing dropped", name, count)
		}
	}
}

// testAgain deletes both pods, which then reach each other but no service, and makes them endpoints again.
func testAgain(t *testing.T, n network, d *Datapath) {
	backend := testkit.Echo(t, n.pods[0], "udp", podA4+":0")
	frontend := netip.MustParseAddrPort(service4 + ":99")
	must2(d.Services().Put(t.Context(), service.CLI, service.Service{Frontend: frontend, Protocol: service.UDP, Backends: service.Backends(backend)}))(t)
	for _, ip := range []string{podA4, podB4} {
		succeed(t, d.Endpoints().DeleteIP(t.Context(), netip.MustParseAddr(ip)))
	}
	before := counts(t, d)
	if _, err := testkit.RoundTrip(t, n.pods[1], "udp", backend.String(), []byte("without")); err != nil {
		t.Errorf("without programs: %v", err)
	}
	if diff := delta(t, d, before); len(diff) != 0 {
		t.Errorf("without programs: counted %v", diff)
	}
	for i := range n.pods {
		if _, change, err := d.Endpoints().Put(t.Context(), n.attachment(i)); err != nil || change != Added {
			t.Fatalf("Put once more: %v, %v", change, err)
		}
	}
	if _, err := testkit.RoundTrip(t, n.pods[1], "udp", frontend.String(), []byte("again")); err != nil {
		t.Errorf("once more: %v", err)
	}
}

// plain pods make all checksums and segments themselves.
func plain(build func(testing.TB) network) func(testing.TB) network {
	return func(t testing.TB) network {
		t.Helper()
		testkit.RequireTool(t, "ethtool")
		n := build(t)
		n.run(t, `
			netns exec PODA ethtool -K eth0 tx off tso off gso off
			netns exec PODB ethtool -K eth0 tx off tso off gso off`)
		return n
	}
}

type trafficCase struct {
	network   network
	datapath  *Datapath
	family    family
	protocol  string
	delivered string
	untouched bool
}

// marked is whether packets come with the mark that nothing is left to do for them.
func (c trafficCase) marked() bool { return c.delivered != "redirect_peer" && !c.network.inUserSpace }

func testTraffic(t *testing.T, c trafficCase) {
	backend := testkit.Echo(t, c.network.pods[0], c.protocol, net.JoinHostPort(c.family.pod, "0"))
	frontend := netip.MustParseAddrPort(net.JoinHostPort(c.family.service, servicePort))
	p := must(service.ParseProtocol(c.protocol))(t)
	s := service.Service{Frontend: frontend, Protocol: p, Backends: service.Backends(backend)}
	must2(c.datapath.Services().Put(t.Context(), service.CLI, s))(t)
	client := netip.MustParseAddr(c.family.client)
	sizes := []int{1, 1400, 8000} // UDP's last is in fragments
	if c.protocol == "tcp" {
		sizes = []int{1, 1 << 20}
	}
	for _, size := range sizes {
		payload := make([]byte, size)
		_, _ = rand.Read(payload)
		before := counts(t, c.datapath)
		peer, err := testkit.RoundTrip(t, c.network.pods[1], c.protocol, frontend.String(), payload)
		if err != nil {
			t.Fatalf("service, %d bytes: %v", size, err)
		}
		if peer.Addr() != client {
			t.Errorf("the backend saw %s, want %s", peer, client)
		}
		diff := delta(t, c.datapath, before)
		if diff["forward"] == 0 || diff["reverse"] == 0 || diff["new_connection"] != 1 ||
			diff[c.delivered] < diff["forward"]+diff["reverse"] || (diff["delivered"] > 0) != c.marked() {
			t.Errorf("service, %d bytes: counted %v", size, diff)
		}
		before = settled(t, c.datapath)
		if peer, err = testkit.RoundTrip(t, c.network.pods[1], c.protocol, backend.String(), payload); err != nil {
			t.Fatalf("pod, %d bytes: %v", size, err)
		}
		if diff = delta(t, c.datapath, before); diff["port_changed"] == 1 {
			continue // the client's port is by chance the one that it called the service from
		}
		if peer.Addr() != client || diff["new_connection"] != 0 ||
			(diff[c.delivered] == 0) != c.untouched || (diff["delivered"] > 0) != c.marked() {
			t.Errorf("pod, %d bytes: the backend saw %s; counted %v", size, peer, diff)
		}
		// Some packets may be between their two counters, or the kernel's own.
		if c.untouched && c.marked() && 2*diff["delivered"] < diff["to_pod"] {
			t.Errorf("pod, %d bytes: both programs worked on a packet; counted %v", size, diff)
		}
	}
	testHairpin(t, c, frontend)
	testHost(t, c, backend)
}

// testHost sends between the host and a pod, which the programs must not disturb.
func testHost(t *testing.T, c trafficCase, backend netip.AddrPort) {
	payload := bytes.Repeat([]byte("host "), 1000)
	if _, err := testkit.RoundTrip(t, c.network.host, c.protocol, backend.String(), payload); err != nil {
		t.Errorf("host to pod: %v", err)
	}
	host := testkit.Echo(t, c.network.host, c.protocol, net.JoinHostPort(c.family.gateway, "0"))
	peer, err := testkit.RoundTrip(t, c.network.pods[1], c.protocol, host.String(), payload)
	if err != nil || peer.Addr().String() != c.family.client {
		t.Errorf("pod to host: from %s, %v", peer, err)
	}
}

// testHairpin lets the backend's pod call its own service.
func testHairpin(t *testing.T, c trafficCase, frontend netip.AddrPort) {
	payload := bytes.Repeat([]byte("hairpin "), 500)
	peer, err := testkit.RoundTrip(t, c.network.pods[0], c.protocol, frontend.String(), payload)
	if err != nil {
		t.Fatalf("hairpin: %v", err)
	}
	if peer.Addr() != frontend.Addr() {
		t.Errorf("hairpin: the backend saw %s, want the service's address", peer)
	}
}
