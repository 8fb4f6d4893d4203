// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"mustang/internal/lab"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// uplinkDevice is the uplink device of the labs, in a namespace that represents this
// machine. The device has the name that the labs' own uplink has.
var uplinkDevice = lab.UplinkDevice{
	Name: lab.Uplink, Host: netip.MustParsePrefix("10.7.0.50/24"), Pod: netip.MustParsePrefix("10.7.0.51/24"),
}

// network is the network of the labs: this machine and a peer.
type network struct{ machine, peer *netns.Namespace }

const networkPeer = "10.7.0.1" // the other machine's address

func newNetwork(t *testing.T) network {
	t.Helper()
	n := network{machine: testkit.Namespace(t, "machine"), peer: testkit.Namespace(t, "peer")}
	for _, key := range []string{"all", "default"} { // or a snapshot would change by itself
		testkit.Succeed(t, rtnl.In(n.machine).SetSysctl("net/ipv6/conf/"+key+"/accept_dad", "0"))
	}
	// An MTU of its own, which pods are to have too.
	if err := rtnl.AddVeth(rtnl.VethEnd{Namespace: n.machine, Name: lab.Uplink}, rtnl.VethEnd{Namespace: n.peer,
		Name: "eth0"}, 1400); err != nil {
		t.Fatal(err)
	}
	for _, end := range []struct {
		ns             *netns.Namespace
		device, prefix string
	}{{n.machine, lab.Uplink, "10.7.0.2/24"}, {n.peer, "eth0", networkPeer + "/24"}} {
		if err := rtnl.In(end.ns).Configure(end.device,
			rtnl.DeviceConfig{Addresses: []netip.Prefix{netip.MustParsePrefix(end.prefix)}, Up: true}); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func (n network) up(t *testing.T, s lab.Store, o lab.Options) *lab.Lab {
	t.Helper()
	var l *lab.Lab
	err := n.machine.Do(func() (err error) {
		l, err = s.Up(t.Context(), o)
		return err
	})
	testkit.Succeed(t, err)
	t.Cleanup(func() {
		err := l.Close()
		testkit.Check(t, err == nil, "%v", err)
	})
	return l
}

// exchange sends from a place to the peer, which must see the address.
func (n network) exchange(t *testing.T, from *netns.Namespace, seenAs netip.Addr) {
	t.Helper()
	for network, sizes := range map[string][]int{"tcp": {1, 1 << 18}, "udp": {1, 1400 - 28, 8000}} {
		server := testkit.Echo(t, n.peer, network, networkPeer+":0").String()
		for _, size := range sizes {
			seen, err := testkit.RoundTrip(t, from, network, server, make([]byte, size))
			testkit.Check(t, err == nil && seen.Addr() == seenAs,
				"%s, %d bytes from %s: the peer sees %s instead of %s, %v", network, size, from.Name(), seen, seenAs, err)
		}
	}
}

// TestPodToNetwork joins labs of each way to one network, one after the other, with the same addresses.
func TestPodToNetwork(t *testing.T) {
	s := store(t)
	n := newNetwork(t)
	// All namespaces get more sysctls when the first rules load a module.
	if err := up(t, s, options(lab.Options{Topology: lab.TopologyPodToHost, Link: "veth",
		NAT: true})).Close(); err != nil {
		t.Fatal(err)
	}
	before := testkit.Snapshot(t, n.machine)
	var labs []*lab.Lab
	for name, o := range map[string]lab.Options{
		"veth": {Link: "veth"}, "veth/ebpf": {Link: "veth", Datapath: lab.DatapathEBPF}, "veth/nat": {Link: "veth",
			NAT: true},
		"bridge/nat": {Link: "bridge", NAT: true}, "macvlan": {Link: "macvlan"}, "ipvlan-l2": {Link: "ipvlan-l2"},
		"netkit": {Link: "netkit"}, "tun": {Link: "tun"},
	} {
		if mode, err := podlink.Lookup(o.Link); err == nil && mode.Probe() != nil {
			t.Logf("%s is not in this kernel", name)
			continue
		}
		o.Topology, o.Uplink = lab.TopologyPodToNetwork, uplinkDevice
		l := n.up(t, s, options(o))
		if !t.Run(name, func(t *testing.T) { n.check(t, l) }) {
			return
		}
		// A veth device lacks a filter for MAC addresses.
		during := strings.Replace(testkit.Snapshot(t, n.machine), "promiscuity 1", "promiscuity 0", 1)
		testkit.Check(t, during == before, "%s changed the machine: %s", name, firstDifference(before, during))
		testkit.Succeed(t, l.Disconnect())
		labs = append(labs, l)
	}
	for _, l := range labs {
		t.Run("again "+l.Options.Link, func(t *testing.T) {
			testkit.Succeed(t, l.Connect())
			n.check(t, l)
			testkit.Succeed(t, l.Disconnect())
		})
	}
	for _, l := range labs {
		testkit.Succeed(t, l.Close())
		left := leftoversOf(t, l.Options.Name, s.Dir)
		testkit.Check(t, len(left) == 0, "left behind: %q", left)
	}
	after := testkit.Snapshot(t, n.machine)
	testkit.Check(t, after == before, "the machine is not as it was: %s", firstDifference(before, after))
}

// check has both places of a lab talk to the peer, and the machine itself.
func (n network) check(t *testing.T, l *lab.Lab) {
	seenAs := uplinkDevice.Pod.Addr()
	if l.Options.NAT {
		seenAs = uplinkDevice.Host.Addr()
	}
	n.exchange(t, place(t, l, lab.PodB), seenAs)
	n.exchange(t, place(t, l, lab.HostB), uplinkDevice.Host.Addr())
	n.exchange(t, n.machine, netip.MustParseAddr("10.7.0.2"))
	device, err := rtnl.In(place(t, l, lab.PodB)).Device(l.Device(lab.PodB))
	testkit.Check(t, err == nil && device.MTU == 1400, "the pod's MTU is %d, %v", device.MTU, err)
}

// TestPodToNetworkSilent checks that a lab answers ARP for its own addresses alone. It does not answer for addresses
// that only its links have, which another host on the network may have.
func TestPodToNetworkSilent(t *testing.T) {
	n := newNetwork(t)
	n.up(t, store(t), options(lab.Options{Topology: lab.TopologyPodToNetwork, Uplink: uplinkDevice, Link: "veth"}))
	ranges := []netip.Prefix{netip.MustParsePrefix("198.18.11.99/24"), netip.MustParsePrefix("169.254.9.9/16")}
	testkit.Succeed(t, rtnl.In(n.peer).Configure("eth0", rtnl.DeviceConfig{Addresses: ranges, Up: true}))
	send := func(addr string) {
		conn := testkit.Must(testkit.Dial(n.peer, "udp", addr+":9"))(t)
		defer conn.Close()
		_, err := conn.Write([]byte("mustang"))
		testkit.Require(t, err == nil, "%v", err)
	}
	answered := func(addr string) bool {
		var neighbors []byte
		if err := n.peer.Do(func() (err error) {
			neighbors, err = os.ReadFile("/proc/thread-self/net/arp")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		// Hardware type 1, and flag 2 (ATF_COM): the address is resolved.
		return regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(addr) + ` +0x1 +0x2 `).Match(neighbors)
	}
	silent := []string{"10.7.0.52", "198.18.11.1", "169.254.1.1"}
	for _, addr := range silent {
		send(addr)
	}
	// The lab processes requests in order: its later answers show that the earlier requests had none.
	for _, addr := range []string{"10.7.0.50", "10.7.0.51"} {
		send(addr)
		testkit.Eventually(t, 5*time.Second, func() error {
			if !answered(addr) {
				return fmt.Errorf("%s: no ARP answer", addr)
			}
			return nil
		})
	}
	for _, addr := range silent {
		testkit.Check(t, !answered(addr), "%s: ARP answer for an address of the lab's links", addr)
	}
}

// TestPodToNetworkFailed names devices that cannot have macvlan devices.
func TestPodToNetworkFailed(t *testing.T) {
	s := store(t)
	n := newNetwork(t)
	for culprit, device := range map[string]string{`"nope"`: "nope", `"lo"`: "lo"} {
		o := options(lab.Options{Topology: lab.TopologyPodToNetwork, Uplink: uplinkDevice, Link: "veth"})
		o.Uplink.Name = device
		err := n.machine.Do(func() error {
			_, err := s.Up(t.Context(), o)
			return err
		})
		testkit.Check(t, err != nil && strings.Contains(err.Error(), culprit),
			"%s: error is %v, want one that names %s", device, err, culprit)
		left := leftovers(t, o.Name, s.Dir)
		testkit.Check(t, len(left) == 0, "%s: left behind: %q", device, left)
	}
}
