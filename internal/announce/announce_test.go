// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.CheckLeaks(m)) }

// segment is a bridge with a client and two nodes.
type segment struct {
	client *netns.Namespace
	nodes  []*netns.Namespace
	macs   []string
}

func newSegment(t *testing.T) *segment {
	t.Helper()
	testkit.RequireTool(t, "ip")
	wire, s := testkit.Namespace(t, "wire"), &segment{}
	testkit.Command(t, wire, "ip link add br0 up type bridge")
	for i, name := range []string{"client", "one", "two"} {
		ns, port := testkit.Namespace(t, name), fmt.Sprint("port", i)
		testkit.Succeed(t, rtnl.AddVeth(rtnl.VethEnd{Namespace: ns, Name: "eth0"},
			rtnl.VethEnd{Namespace: wire, Name: port}, 1500))
		testkit.Command(t, wire, "ip link set "+port+" up master br0")
		testkit.Succeed(t, rtnl.In(ns).Configure("eth0", rtnl.DeviceConfig{Up: true, Addresses: []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", 100+i)),
			netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", 100+i)),
		}}))
		if s.client == nil {
			s.client = ns
			testkit.Succeed(t, rtnl.In(ns).SetSysctl("net/ipv4/neigh/eth0/mcast_solicit", "1"))
			continue
		}
		running(t, ns)
		s.nodes = append(s.nodes, ns)
		s.macs = append(s.macs, testkit.Must(rtnl.In(ns).Device("eth0"))(t).MAC.String())
	}
	return s
}

// running waits until a node's device can send.
func running(t *testing.T, ns *netns.Namespace) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if !testkit.Must(rtnl.In(ns).Device("eth0"))(t).Running {
			return errors.New("eth0 has no carrier")
		}
		return nil
	})
}

// at waits until the client's neighbour entry of an address contains a MAC address or a state. A datagram, which nobody
// receives, makes the kernel ask for an address that it does not know.
func (s *segment) at(t *testing.T, addr netip.Addr, want string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		conn, err := testkit.Dial(s.client, "udp", netip.AddrPortFrom(addr, 9).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, _ = conn.Write([]byte("x"))
		if entry := testkit.Command(t, s.client, "ip neigh show "+addr.String()); !strings.Contains(entry, want) {
			return fmt.Errorf("%v is %q, want %s", addr, entry, want)
		}
		return nil
	})
}

// self are the addresses of a node's object.
func (s *segment) self(i int) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", 101+i))}
}

// apply has a node answer for addresses that no other host has.
func (s *segment) apply(t *testing.T, a *Announcer, i int, owned ...netip.Addr) {
	t.Helper()
	conflicts := testkit.Must(a.Apply("a", s.self(i), owned))(t)
	testkit.Require(t, len(conflicts) == 0, "the conflicts are %v", conflicts)
}

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// TestAddressesResolveToTheirOwner has a client resolve addresses that no device has. It learns that the owner has
// changed without asking, and an owner answers to a neighbour that asks it alone.
func TestAddressesResolveToTheirOwner(t *testing.T) {
	t.Parallel()
	s := newSegment(t)
	testkit.Succeed(t, rtnl.In(s.nodes[0]).SetSysctl("net/ipv6/conf/lo/disable_ipv6", "1"))
	owned := addrs("192.0.2.7", "2001:db8::7")
	nodes := make([]*Announcer, len(s.nodes))
	for i, ns := range s.nodes {
		nodes[i] = New(ns)
		defer nodes[i].Close()
	}
	apply := func(i int, owned ...netip.Addr) { t.Helper(); s.apply(t, nodes[i], i, owned...) }
	apply(0)
	s.at(t, owned[0], "FAILED")
	apply(0, owned...)
	apply(1, owned[0].Next())
	for _, addr := range owned {
		s.at(t, addr, s.macs[0])
		testkit.Command(t, s.client, fmt.Sprintf("ip neigh replace %v lladdr %s dev eth0 nud probe", addr, s.macs[0]))
		s.at(t, addr, s.macs[0]+" REACHABLE")
	}
	stranger := New(s.nodes[1]) // in another cluster with the same pool
	defer stranger.Close()
	testkit.Eventually(t, time.Minute, func() error {
		if have := testkit.Must(stranger.Apply("b", s.self(1), owned))(t); len(have) != len(owned) {
			return fmt.Errorf("an announcer of another cluster has the conflicts %v", have)
		}
		return nil
	})
	stranger.Close()
	apply(1, owned...) // before the former owner knows
	apply(0)
	for _, addr := range owned { // the client does not ask
		testkit.Eventually(t, time.Minute, func() error {
			if entry := testkit.Command(t, s.client, "ip neigh show "+addr.String()); !strings.Contains(entry, s.macs[1]) {
				return fmt.Errorf("the former owner: %s", entry)
			}
			return nil
		})
	}
	changed := testkit.Must(nodes[1].Watch(t.Context()))(t)
	testkit.Command(t, s.nodes[1], "ip link set eth0 down")
	testkit.Command(t, s.nodes[1], "ip link set eth0 address 02:00:00:00:00:07 up")
	running(t, s.nodes[1])
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Fatal("a new MAC address is no change")
	}
	apply(1, owned[0])
	s.at(t, owned[0], "02:00:00:00:00:07")
	nodes[1].Close()
	testkit.Command(t, s.client, "ip neigh flush all")
	s.at(t, owned[0], "FAILED")
}

// TestAddressesOfOthersAreRefused has a node own addresses of other hosts, of its routes and of subnets. It answers for
// such an address once the other host no longer has it, and defends it.
func TestAddressesOfOthersAreRefused(t *testing.T) {
	t.Parallel()
	s := newSegment(t)
	a := New(s.nodes[0])
	defer a.Close()
	used := addrs("192.0.2.7", "2001:db8::7")
	testkit.Command(t, s.client, "ip address add 192.0.2.7/24 dev eth0")
	testkit.Command(t, s.client, "ip address add 2001:db8::7/64 dev eth0 nodad")
	testkit.Command(t, s.nodes[0], "ip route add default via 192.0.2.1")
	testkit.Command(t, s.nodes[0], "ip address add 192.0.2.9/24 dev eth0")
	mac := testkit.Must(rtnl.In(s.client).Device("eth0"))(t).MAC.String()
	conflicts := map[string]string{"192.0.2.7": "host " + mac + ` on device "eth0" uses it`, "2001:db8::7": "host " + mac,
		"192.0.2.1": "next hop", "192.0.2.9": `device "eth0" has it`, "192.0.2.255": "broadcast address of 192.0.2.0/24",
		"2001:db8::": "first address of 2001:db8::/64"}
	all := append(addrs("192.0.2.1", "192.0.2.9", "192.0.2.255", "2001:db8::", "192.0.2.8"), used...)
	testkit.Eventually(t, time.Minute, func() error { // the answer to a probe may be read late
		testkit.Must(a.Apply("a", s.self(0), nil))(t)
		have := testkit.Must(a.Apply("a", s.self(0), all))(t)
		for addr, words := range conflicts {
			if why := have[netip.MustParseAddr(addr)]; !strings.Contains(why, words) || len(have) != len(conflicts) {
				return fmt.Errorf("the conflicts are %v, want %v", have, conflicts)
			}
		}
		return nil
	})
	s.at(t, netip.MustParseAddr("192.0.2.8"), s.macs[0])
	testkit.Command(t, s.client, "ip address del 192.0.2.7/24 dev eth0")
	testkit.Command(t, s.client, "ip address del 2001:db8::7/64 dev eth0")
	conn := raw(t, s.client)
	s.apply(t, a, 0, used...)
	for _, addr := range used {
		s.at(t, addr, s.macs[0])
	}
	announces := func(times int) {
		t.Helper()
		await(t, conn, func(arp header.ARP) bool {
			if arp.ProtocolAddressSender()[3] == 7 && arp.ProtocolAddressTarget()[3] == 7 &&
				net.HardwareAddr(arp.HardwareAddressSender()).String() == s.macs[0] {
				times--
			}
			return times == 0
		})
	}
	announces(announcements)
	claim := frame(broadcast, testkit.Must(net.ParseMAC(s.macs[1]))(t), nil, [2]byte{7, 7})
	testkit.Must(raw(t, s.nodes[1]).WriteTo(claim, &packet.Addr{HardwareAddr: broadcast}))(t)
	announces(1)
	warns := func(of netip.Addr, mac string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			conflicts := testkit.Must(a.Apply("a", s.self(0), used))(t)
			if why := conflicts[of]; !strings.Contains(why, "host "+mac) {
				return fmt.Errorf("the conflicts are %v", conflicts)
			}
			return nil
		})
	}
	warns(used[0], s.macs[1])
	testkit.Succeed(t, rtnl.In(s.nodes[1]).SetSysctl("net/ipv6/conf/eth0/ndisc_notify", "1"))
	testkit.Command(t, s.nodes[1], "ip address add 2001:db8::7/64 dev eth0 nodad")
	testkit.Command(t, s.nodes[1], "ip link set eth0 address 02:00:00:00:00:09") // a notice to all nodes
	warns(used[1], "02:00:00:00:00:09")
}

// TestDevicesThatRunAgainProbe has the device of an owner down while another host takes one of its addresses. The owner
// answers for the other one alone, and announces it.
func TestDevicesThatRunAgainProbe(t *testing.T) {
	t.Parallel()
	s := newSegment(t)
	a, owned := New(s.nodes[0]), addrs("192.0.2.7", "192.0.2.8")
	defer a.Close()
	s.apply(t, a, 0, owned...)
	testkit.Command(t, s.nodes[0], "ip link set eth0 down")
	s.apply(t, a, 0, owned...)
	testkit.Command(t, s.client, "ip address add 192.0.2.7/24 dev eth0")
	conn := raw(t, s.client)
	testkit.Command(t, s.nodes[0], "ip link set eth0 up")
	running(t, s.nodes[0])
	testkit.Eventually(t, time.Minute, func() error {
		if have := testkit.Must(a.Apply("a", s.self(0), owned))(t); have[owned[0]] == "" || have[owned[1]] != "" {
			return fmt.Errorf("the conflicts are %v", have)
		}
		return nil
	})
	await(t, conn, func(arp header.ARP) bool {
		return arp.ProtocolAddressSender()[3] == 8 && arp.ProtocolAddressTarget()[3] == 8
	})
}

// raw returns a socket on the device of a host.
func raw(t *testing.T, host *netns.Namespace) *packet.Conn {
	t.Helper()
	conn := testkit.Must(netns.Get(host, func() (*packet.Conn, error) {
		at, err := net.InterfaceByName("eth0")
		if err != nil {
			return nil, err
		}
		return packet.Listen(at, packet.Raw, unix.ETH_P_ARP, nil)
	}))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// await reads ARP packets until one is as it should be.
func await(t *testing.T, conn *packet.Conn, is func(header.ARP) bool) {
	t.Helper()
	testkit.Succeed(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	for buffer, found := make([]byte, 1500), false; !found; {
		n, _, err := conn.ReadFrom(buffer)
		testkit.Succeed(t, err)
		found = is(buffer[14:n])
	}
}

// frame returns an ARP request of the last bytes of two addresses, with a VLAN tag or without.
func frame(to, from net.HardwareAddr, vlan []byte, ends [2]byte) []byte {
	return slices.Concat(to, from, vlan, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, from, []byte{192, 0, 2, ends[0]},
		make([]byte, 6), []byte{192, 0, 2, ends[1]})
}

// TestRequestsToOthersAreIgnored sends requests in a VLAN that the node has no device of, and to another MAC address on
// a device that receives all. The answer to a later request comes first.
func TestRequestsToOthersAreIgnored(t *testing.T) {
	t.Parallel()
	s := newSegment(t)
	a := New(s.nodes[0])
	defer a.Close()
	s.apply(t, a, 0, addrs("192.0.2.7", "192.0.2.8")...)
	testkit.Command(t, s.nodes[0], "ip link set eth0 promisc on")
	conn, me, other := raw(t, s.client), net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	for _, f := range [][]byte{
		frame(broadcast, me, []byte{0x81, 0, 0, 200}, [2]byte{100, 7}), frame(other, me, nil, [2]byte{100, 7}),
		frame(broadcast, me, nil, [2]byte{100, 8}),
	} {
		testkit.Must(conn.WriteTo(f, &packet.Addr{HardwareAddr: broadcast}))(t)
	}
	await(t, conn, func(arp header.ARP) bool {
		is8 := arp.ProtocolAddressSender()[3] == 8
		testkit.Require(t, is8 || arp.Op() != header.ARPReply, "%v is answered", arp.ProtocolAddressSender())
		return is8 && arp.Op() == header.ARPReply
	})
}

// TestUsersOfAnAddressAreWarned has a device configured with an address of a Service. Its duplicate address detection
// finds the owner.
func TestUsersOfAnAddressAreWarned(t *testing.T) {
	t.Parallel()
	s := newSegment(t)
	a := New(s.nodes[0])
	defer a.Close()
	s.apply(t, a, 0, addrs("2001:db8::7")...)
	testkit.Command(t, s.client, "ip address add 2001:db8::7/64 dev eth0")
	testkit.Eventually(t, time.Minute, func() error {
		if out := testkit.Command(t, s.client, "ip address show dev eth0"); !strings.Contains(out, "dadfailed") {
			return fmt.Errorf("no duplicate: %s", out)
		}
		return nil
	})
}

// TestOthersProbe has the node of another cluster probe the same addresses all the time. The node takes none.
func TestOthersProbe(t *testing.T) {
	t.Parallel()
	s, owned := newSegment(t), addrs("192.0.2.7", "2001:db8::7")
	at := testkit.Must(rtnl.In(s.nodes[1]).Device("eth0"))(t)
	other := testkit.Must(open(s.nodes[1], device{at.Index, at.Name, [6]byte(at.MAC), markOf("b")}))(t)
	testkit.Must(other.set(owned))(t)
	var probes sync.WaitGroup
	defer probes.Wait()
	defer other.close()
	probes.Go(func() {
		for {
			select {
			case <-other.closed:
				return
			case <-time.After(20 * time.Millisecond):
				other.probe()
			}
		}
	})
	a := New(s.nodes[0])
	defer a.Close()
	conflicts := testkit.Must(a.Apply("a", s.self(0), owned))(t)
	for _, addr := range owned {
		testkit.Check(t, conflicts[addr] != "", "it answers for %v", addr)
	}
}
