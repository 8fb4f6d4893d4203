// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

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
		s.nodes = append(s.nodes, ns)
		s.macs = append(s.macs, testkit.Must(rtnl.In(ns).Device("eth0"))(t).MAC.String())
	}
	return s
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

// TestAddressesResolveToTheirOwner has a client resolve addresses that no device has. It learns that the owner has
// changed without asking, and an owner answers to a neighbour that asks it alone.
func TestAddressesResolveToTheirOwner(t *testing.T) {
	t.Parallel()
	s := newSegment(t)
	owned := []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")}
	nodes := make([]*Announcer, len(s.nodes))
	for i, ns := range s.nodes {
		nodes[i] = New(ns)
		defer nodes[i].Close()
	}
	self := func(i int) []netip.Addr { return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", 101+i))} }
	apply := func(i int, owned ...netip.Addr) { t.Helper(); testkit.Succeed(t, nodes[i].Apply(self(i), owned)) }
	apply(0)
	s.at(t, owned[0], "FAILED")
	apply(0, owned...)
	apply(1, owned[0].Next())
	for _, addr := range owned {
		s.at(t, addr, s.macs[0])
		testkit.Command(t, s.client, fmt.Sprintf("ip neigh replace %v lladdr %s dev eth0 nud probe", addr, s.macs[0]))
		s.at(t, addr, s.macs[0]+" REACHABLE")
	}
	apply(0)
	apply(1, owned...)
	for _, addr := range owned {
		testkit.Eventually(t, time.Minute, func() error {
			if entry := testkit.Command(t, s.client, "ip neigh show "+addr.String()); !strings.Contains(entry, s.macs[1]) {
				return fmt.Errorf("the former owner: %s", entry)
			}
			return nil
		})
	}
	testkit.Command(t, s.nodes[1], "ip link set eth0 down")
	testkit.Command(t, s.nodes[1], "ip link set eth0 address 02:00:00:00:00:07 up")
	apply(1, owned[0])
	s.at(t, owned[0], "02:00:00:00:00:07")
	nodes[1].Close()
	testkit.Command(t, s.client, "ip neigh flush all")
	s.at(t, owned[0], "FAILED")
}

// TestUsersOfAnAddressAreWarned has a device configured with an address of a Service. Its duplicate address detection
// finds the owner.
func TestUsersOfAnAddressAreWarned(t *testing.T) {
	t.Parallel()
	s := newSegment(t)
	a := New(s.nodes[0])
	defer a.Close()
	owned := netip.MustParseAddr("2001:db8::7")
	testkit.Succeed(t, a.Apply([]netip.Addr{netip.MustParseAddr("192.0.2.101")}, []netip.Addr{owned}))
	testkit.Command(t, s.client, "ip address add 2001:db8::7/64 dev eth0")
	testkit.Eventually(t, time.Minute, func() error {
		if out := testkit.Command(t, s.client, "ip address show dev eth0"); !strings.Contains(out, "dadfailed") {
			return fmt.Errorf("no duplicate: %s", out)
		}
		return nil
	})
}
