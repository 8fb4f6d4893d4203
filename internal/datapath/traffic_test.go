// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"crypto/rand"
	"net"
	"net/netip"
	"testing"

	"mustang/internal/lb"
	"mustang/internal/testkit"
)

// family is the addresses of one IP version.
type family struct{ name, pod, client, service string }

func families() []family {
	return []family{{"ipv4", podA4, podB4, service4}, {"ipv6", podA6, podB6, service6}}
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
		{"veth without offload", plain(routed), "redirect_peer", false},
		{"macvlan without offload", plain(slaves), "l2_delivered", true},
	} {
		t.Run(mode.name, func(t *testing.T) {
			n, d := mode.make(t), openTest(t)
			n.attachBoth(t, d)
			for _, f := range families() {
				for _, protocol := range []string{"tcp", "udp"} {
					t.Run(f.name+"/"+protocol, func(t *testing.T) {
						testTraffic(t, trafficCase{n, d, f, protocol, mode.delivered, mode.untouched})
					})
				}
			}
			for name, count := range counts(t, d) {
				if len(name) > 5 && name[:5] == "drop_" && count != 0 {
					t.Errorf("%s = %d, want nothing dropped", name, count)
				}
			}
		})
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

func testTraffic(t *testing.T, c trafficCase) {
	backend := testkit.Echo(t, c.network.pods[0], c.protocol, net.JoinHostPort(c.family.pod, "0"))
	frontend := netip.MustParseAddrPort(net.JoinHostPort(c.family.service, servicePort))
	p, err := lb.ParseProtocol(c.protocol)
	if err != nil {
		t.Fatal(err)
	}
	service := lb.Service{Frontend: frontend, Protocol: p, Backends: []netip.AddrPort{backend}}
	if _, _, err := c.datapath.PutService(service); err != nil {
		t.Fatal(err)
	}
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
			diff[c.delivered] < diff["forward"]+diff["reverse"] {
			t.Errorf("service, %d bytes: counted %v", size, diff)
		}
		before = counts(t, c.datapath)
		if peer, err = testkit.RoundTrip(t, c.network.pods[1], c.protocol, backend.String(), payload); err != nil {
			t.Fatalf("pod, %d bytes: %v", size, err)
		}
		if diff = delta(t, c.datapath, before); peer.Addr() != client || diff["forward"] != 0 || (diff[c.delivered] == 0) != c.untouched {
			t.Errorf("pod, %d bytes: the backend saw %s; counted %v", size, peer, diff)
		}
	}
	testHairpin(t, c, frontend)
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
