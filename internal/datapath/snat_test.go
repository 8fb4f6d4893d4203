// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// Addresses of a client outside, and of the host on the way to it.
const (
	outer4, outer6 = "172.16.2.2", "fd00:98::2"
	gate4, gate6   = "172.16.2.1", "fd00:98::1"
)

// client joins a client outside to the host by another wire than that to the other node.
func (n network) client(t testing.TB) *netns.Namespace {
	t.Helper()
	client := testkit.Namespace(t, "client")
	n.run(t, `
		-n HOST link add outer type veth peer name outer netns `+client.Name()+`
		-n HOST addr add `+gate4+`/24 dev outer
		-n HOST addr add `+gate6+`/64 dev outer nodad
		-n `+client.Name()+` addr add `+outer4+`/24 dev outer
		-n `+client.Name()+` addr add `+outer6+`/64 dev outer nodad
		-n HOST link set outer up
		-n `+client.Name()+` link set outer up
		-n `+client.Name()+` route add default via `+gate4+`
		-n `+client.Name()+` -6 route add default via `+gate6)
	return client
}

// cluster is a client outside, a host with pods, and another node, which knows no way to the client.
type cluster struct {
	network
	d           *Datapath
	client, far *netns.Namespace
}

func newCluster(t testing.TB) cluster {
	t.Helper()
	n, d := routed(t), openTest(t)
	c := cluster{n, d, n.client(t), n.wire(t)}
	n.run(t, `
		-n `+c.far.Name()+` route del default
		-n `+c.far.Name()+` -6 route del default`)
	n.attachBoth(t, d)
	for _, device := range []string{"outer", "wire"} {
		must(d.Uplinks().Put(t.Context(), n.host, device))(t)
	}
	return c
}

// put stores a service.
func (c cluster) put(t testing.TB, s service.Service) {
	t.Helper()
	putService(t, c.d, s)
}

// outsideCase is a family and a protocol of a client outside.
type outsideCase struct {
	protocol                service.Protocol
	gate, near, far, client string
	pod, external           string
}

func eachOutside(t *testing.T, test func(*testing.T, outsideCase)) {
	for _, protocol := range []service.Protocol{service.TCP, service.UDP} {
		for name, c := range map[string]outsideCase{
			// An address for each protocol: what a client learns of the way to one stays with it.
			"ipv4": {protocol, gate4, near4, far4, outer4, podA4, fmt.Sprintf("203.0.113.%d", protocol)},
			"ipv6": {protocol, gate6, near6, far6, outer6, podA6, fmt.Sprintf("2001:db8:7::%d", protocol)},
		} {
			t.Run(name+"/"+protocol.String(), func(t *testing.T) { test(t, c) })
		}
	}
}

// payloads returns what a client sends: segments that the devices make of larger ones, and datagrams of one packet and
// of fragments.
func (c outsideCase) payloads() [][]byte {
	if c.protocol == service.TCP {
		return [][]byte{[]byte("x"), bytes.Repeat([]byte("outside "), 100_000)}
	}
	return [][]byte{[]byte("x"), bytes.Repeat([]byte("o"), 1200), bytes.Repeat([]byte("f"), 8000)}
}

// TestBackendOnAnotherNode has a client outside call services whose backend is on another node, which answers this one.
func TestBackendOnAnotherNode(t *testing.T) {
	c := newCluster(t)
	eachOutside(t, func(t *testing.T, o outsideCase) {
		backend := testkit.Echo(t, c.far, o.protocol.String(), net.JoinHostPort(o.far, "0"))
		for _, frontend := range []string{net.JoinHostPort(o.gate, servicePort), net.JoinHostPort(o.external, servicePort)} {
			s := service.Service{Frontend: netip.MustParseAddrPort(frontend), Protocol: o.protocol,
				Backends: service.Backends(backend)}
			s.External = true
			c.put(t, s)
			for _, payload := range o.payloads() {
				before := settled(t, c.d)
				peer, err := testkit.RoundTrip(t, c.client, o.protocol.String(), frontend, payload)
				diff := delta(t, c.d, before)
				succeed(t, err, "%s, %d bytes", frontend, len(payload))
				if peer.Addr().String() != o.near || peer.Port() < 1024 || peer.Port() >= 32768 {
					t.Errorf("the backend saw %s, want a port of %s that no socket gets", peer, o.near)
				}
				if diff["new_connection"] != 1 || diff["redirect_routed"] != diff["forward"] ||
					diff["redirect_device"] != diff["reverse"] ||
					diff["forward"] == 0 || diff["reverse"] == 0 {
					t.Errorf("%s, %d bytes: counted %v", frontend, len(payload), diff)
				}
			}
		}
		s := o.service(backend) // which calls its own service at this node
		s.Frontend = netip.AddrPortFrom(netip.MustParseAddr(o.near), s.Frontend.Port())
		c.put(t, s)
		peer, err := testkit.RoundTrip(t, c.far, o.protocol.String(), s.Frontend.String(), []byte("itself"))
		if err != nil || peer.Addr().String() != o.near {
			t.Errorf("the backend that calls itself saw %s, %v; want %s", peer, err, o.near)
		}
	})
	wantNoDrops(t, c.d)
}

// TestNoWay has no packet reach the other node in any form if this one has no address on the uplink to it, or no route.
func TestNoWay(t *testing.T) {
	c := newCluster(t)
	device := must(rtnl.In(c.far).Device("wire"))(t)
	var leaked atomic.Int64
	testkit.WatchPackets(t, c.far, device.Index, func(packet []byte) {
		if bytes.Contains(packet, []byte("no way")) || bytes.Contains(packet, binary.BigEndian.AppendUint16(nil, 47123)) {
			leaked.Add(1)
		}
	})
	for _, reason := range []string{"drop_no_source", "drop_no_route", "drop_tunnel_route"} {
		switch reason {
		case "drop_no_source":
			c.run(t, `
				-n HOST addr del `+near4+`/24 dev wire
				-n HOST addr del `+near6+`/64 dev wire
				-n HOST route replace `+far4+` dev wire
				-n HOST route replace `+far6+` dev wire`)
		case "drop_tunnel_route":
			c.run(t, `
				-n HOST route replace `+far4+` encap ip id 7 dst `+far4+` dev wire
				-n HOST route replace `+far6+` encap ip6 id 7 dst `+far6+` dev wire`)
		default:
			c.run(t, `
				-n HOST route replace unreachable `+far4+`
				-n HOST route replace unreachable `+far6)
		}
		must(c.d.Uplinks().Put(t.Context(), c.host, "wire"))(t)
		eachOutside(t, func(t *testing.T, o outsideCase) {
			backend := netip.MustParseAddrPort(net.JoinHostPort(o.far, "47123"))
			frontend := net.JoinHostPort(o.external, servicePort)
			c.put(t, service.Service{
				Frontend: netip.MustParseAddrPort(frontend), Protocol: o.protocol, External: true,
				Backends: service.Backends(backend),
			})
			before := counts(t, c.d)
			call := func() error {
				dialer := net.Dialer{Timeout: 100 * time.Millisecond}
				conn, err := dialer.DialContext(t.Context(), o.protocol.String(), frontend)
				if err == nil {
					_, err = conn.Write([]byte("no way"))
					_ = conn.Close()
				}
				return err
			}
			if err := c.client.Do(call); err == nil && o.protocol == service.TCP {
				t.Error("connected")
			}
			testkit.Eventually(t, 5*time.Second, func() error {
				if diff := delta(t, c.d, before); diff[reason] == 0 {
					return fmt.Errorf("counted %v, want %s", diff, reason)
				}
				return nil
			})
		})
	}
	equal(t, leaked.Load(), 0, "packets left the node")
}

// TestFragmentsOfManyConnections has connections from outside send datagrams in fragments to another node. All leave
// from one address: that of each datagram have one identification, which is not the one that their client chose.
func TestFragmentsOfManyConnections(t *testing.T) {
	const connections = 8
	c := newCluster(t)
	var mu sync.Mutex
	seen := make(map[string]map[byte][]uint32) // identifications by device and the datagram's letter
	for device, ns := range map[string]*netns.Namespace{"outer": c.host, "wire": c.far} {
		link := must(rtnl.In(ns).Device(device))(t)
		testkit.WatchPackets(t, ns, link.Index, func(packet []byte) {
			id, ok := fragmentID(packet)
			mu.Lock()
			defer mu.Unlock()
			if letter := packet[len(packet)-1]; ok && letter >= 'A' && letter < 'A'+connections {
				seen[device][letter] = append(seen[device][letter], id)
			}
		})
	}
	eachOutside(t, func(t *testing.T, o outsideCase) {
		if o.protocol != service.UDP {
			return
		}
		mu.Lock()
		clear(seen)
		seen["outer"], seen["wire"] = make(map[byte][]uint32), make(map[byte][]uint32)
		mu.Unlock()
		s := o.service(testkit.Echo(t, c.far, "udp", net.JoinHostPort(o.far, "0")))
		c.put(t, s)
		for i := range byte(connections) {
			must(testkit.RoundTrip(t, c.client, "udp", s.Frontend.String(), bytes.Repeat([]byte{'A' + i}, 4000)))(t)
		}
		testkit.Eventually(t, 5*time.Second, func() error {
			mu.Lock()
			defer mu.Unlock()
			kept := 0
			for letter := byte('A'); letter < 'A'+connections; letter++ {
				came, left := seen["outer"][letter], seen["wire"][letter]
				if len(came) < 3 || len(left) != len(came) {
					return fmt.Errorf("datagram %c: fragments %x became %x", letter, came, left)
				}
				if came, left = slices.Compact(slices.Clone(came)), slices.Compact(slices.Clone(left)); len(came) != 1 ||
					len(left) != 1 {
					return fmt.Errorf("datagram %c: fragments %x became %x, want one identification each", letter, came, left)
				}
				if left[0] == came[0] {
					kept++
				}
			}
			if kept > 1 { // one in 65,536 may
				return fmt.Errorf("%d of %d datagrams left with the identification that they came with", kept, connections)
			}
			return nil
		})
	})
	wantNoDrops(t, c.d)
}

// fragmentID returns the identification of a fragment; false for another packet.
func fragmentID(frame []byte) (uint32, bool) {
	ip := frame[14:]
	if ip[0]>>4 == 4 {
		return uint32(binary.BigEndian.Uint16(ip[4:])), binary.BigEndian.Uint16(ip[6:])&0x3fff != 0
	}
	if len(ip) < 48 || ip[6] != fragmentHeader {
		return 0, false
	}
	return binary.BigEndian.Uint32(ip[44:]), true
}
