// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"mustang/internal/lab"
	"mustang/internal/nl"
	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

// parent is what labs of this test are on, in a namespace that stands for this
// machine. The device has the name that the labs' own uplink has.
var parent = lab.Parent{
	Device: lab.Uplink, Host: netip.MustParsePrefix("10.7.0.50/24"), Pod: netip.MustParsePrefix("10.7.0.51/24"),
}

// network is what the labs are joined to: this machine, and another.
type network struct{ machine, peer *nl.Namespace }

// networkPeer is the other machine's address.
const networkPeer = "10.7.0.1"

func newNetwork(t *testing.T) network {
	t.Helper()
	n := network{machine: testkit.Namespace(t, "machine"), peer: testkit.Namespace(t, "peer")}
	for _, key := range []string{"all", "default"} { // or a snapshot would change by itself
		if err := n.machine.SetSysctl("net/ipv6/conf/"+key+"/accept_dad", "0"); err != nil {
			t.Fatal(err)
		}
	}
	// An MTU of its own, which pods are to have too.
	if err := nl.AddWire(nl.WireEnd{Namespace: n.machine, Name: lab.Uplink}, nl.WireEnd{Namespace: n.peer, Name: "eth0"}, 1400); err != nil {
		t.Fatal(err)
	}
	for _, end := range []struct {
		ns             *nl.Namespace
		device, prefix string
	}{{n.machine, lab.Uplink, "10.7.0.2/24"}, {n.peer, "eth0", networkPeer + "/24"}} {
		if err := end.ns.Configure(end.device, nl.DeviceConfig{Addresses: []netip.Prefix{netip.MustParsePrefix(end.prefix)}, Up: true}); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// up builds a lab from inside the machine.
func (n network) up(t *testing.T, s lab.Store, o lab.Options) *lab.Lab {
	t.Helper()
	var l *lab.Lab
	err := n.machine.Do(func() (err error) {
		l, err = s.Up(t.Context(), o)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// exchange sends from a place to the peer, which must see the address.
func (n network) exchange(t *testing.T, from *nl.Namespace, seenAs netip.Addr) {
	t.Helper()
	for network, sizes := range map[string][]int{"tcp": {1, 1 << 18}, "udp": {1, 1400 - 28, 8000}} {
		server := testkit.Echo(t, n.peer, network, networkPeer+":0").String()
		for _, size := range sizes {
			seen, err := testkit.RoundTrip(t, from, network, server, make([]byte, size))
			if err != nil || seen.Addr() != seenAs {
				t.Errorf("%s, %d bytes from %s: the peer sees %s instead of %s, %v", network, size, from.Name(), seen, seenAs, err)
			}
		}
	}
}

// TestPodToNetwork joins labs of each way to one network, one after the other, with
// the same addresses.
func TestPodToNetwork(t *testing.T) {
	s := store(t)
	n := newNetwork(t)
	// All namespaces get more sysctls when the first has rules that need a module.
	if err := up(t, s, options(lab.Options{Topology: lab.TopologyPodToHost, Link: "veth", NAT: true})).Close(); err != nil {
		t.Fatal(err)
	}
	before := testkit.Snapshot(t, n.machine)
	var labs []*lab.Lab
	for name, o := range map[string]lab.Options{
		"veth": {Link: "veth"}, "veth/ebpf": {Link: "veth", Datapath: lab.DatapathEBPF}, "veth/nat": {Link: "veth", NAT: true},
		"bridge/nat": {Link: "bridge", NAT: true}, "macvlan": {Link: "macvlan"}, "ipvlan-l2": {Link: "ipvlan-l2"},
		"netkit": {Link: "netkit"}, "tun": {Link: "tun"},
	} {
		if mode, err := podlink.Lookup(o.Link); err == nil && mode.Probe() != nil {
			t.Logf("%s is not in this kernel", name)
			continue
		}
		o.Topology, o.Parent = lab.TopologyPodToNetwork, parent
		l := n.up(t, s, options(o))
		if !t.Run(name, func(t *testing.T) { n.check(t, l) }) {
			return
		}
		// A veth device has no filter for MAC addresses.
		if during := strings.Replace(testkit.Snapshot(t, n.machine), "promiscuity 1", "promiscuity 0", 1); during != before {
			t.Errorf("%s changed the machine: %s", name, firstDifference(before, during))
		}
		if err := l.Disconnect(); err != nil {
			t.Fatal(err)
		}
		labs = append(labs, l)
	}
	for _, l := range labs {
		t.Run("again "+l.Options.Link, func(t *testing.T) {
			if err := l.Connect(); err != nil {
				t.Fatal(err)
			}
			n.check(t, l)
			if err := l.Disconnect(); err != nil {
				t.Fatal(err)
			}
		})
	}
	for _, l := range labs {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if left := leftoversOf(t, l.Options.Name, s.Dir); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
	if after := testkit.Snapshot(t, n.machine); after != before {
		t.Errorf("the machine is not as it was: %s", firstDifference(before, after))
	}
}

// check has both places of a lab talk to the peer, and the machine itself.
func (n network) check(t *testing.T, l *lab.Lab) {
	seenAs := parent.Pod.Addr()
	if l.Options.NAT {
		seenAs = parent.Host.Addr()
	}
	n.exchange(t, place(t, l, lab.PodB), seenAs)
	n.exchange(t, place(t, l, lab.HostB), parent.Host.Addr())
	n.exchange(t, n.machine, netip.MustParseAddr("10.7.0.2"))
	device, err := place(t, l, lab.PodB).Device(l.Device(lab.PodB))
	if err != nil || device.MTU != 1400 {
		t.Errorf("the pod's MTU is %d, %v", device.MTU, err)
	}
}

// TestPodToNetworkSilent has a lab answer ARP for its own addresses alone: not for
// those that only its links have, which may be another's on the network.
func TestPodToNetworkSilent(t *testing.T) {
	n := newNetwork(t)
	n.up(t, store(t), options(lab.Options{Topology: lab.TopologyPodToNetwork, Parent: parent, Link: "veth"}))
	ranges := []netip.Prefix{netip.MustParsePrefix("198.18.11.99/24"), netip.MustParsePrefix("169.254.9.9/16")}
	if err := n.peer.Configure("eth0", nl.DeviceConfig{Addresses: ranges, Up: true}); err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{"10.7.0.50": true, "10.7.0.51": true, "10.7.0.52": false, "198.18.11.1": false, "169.254.1.1": false}
	for addr := range all {
		conn, err := testkit.Dial(n.peer, "udp", addr+":9")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("who has it?")); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(500 * time.Millisecond) // for those that should not answer
	var neighbours []byte
	if err := n.peer.Do(func() (err error) {
		neighbours, err = os.ReadFile("/proc/thread-self/net/arp")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for addr, answered := range all {
		// Hardware type 1, and flags: 2 is ATF_COM, that the address is known.
		known := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(addr) + ` +0x1 +0x2 `).Match(neighbours)
		if known != answered {
			t.Errorf("%s: answered %t, want %t:\n%s", addr, known, answered, neighbours)
		}
	}
}

// TestPodToNetworkOptions has each setting where it makes no sense, which the error
// names before anything is written.
func TestPodToNetworkOptions(t *testing.T) {
	s := lab.Store{Dir: t.TempDir() + "/state"}
	on := func(change func(*lab.Parent)) lab.Parent {
		p := parent
		change(&p)
		return p
	}
	host := func(text string) lab.Parent {
		return on(func(p *lab.Parent) { p.Host = netip.MustParsePrefix(text) })
	}
	for culprit, o := range map[string]lab.Options{
		"no device is named":                  {Parent: on(func(p *lab.Parent) { p.Device = "" })},
		"uplink address invalid Prefix":       {Parent: on(func(p *lab.Parent) { p.Pod = netip.Prefix{} })},
		"uplink address fd00::1/64: want":     {Parent: host("fd00::1/64")},
		"10.7.0.0/24: it is not one":          {Parent: host("10.7.0.0/24")},
		"10.7.0.255/24: it is not one":        {Parent: host("10.7.0.255/24")},
		"224.0.0.1/24: it is not one":         {Parent: host("224.0.0.1/24")},
		"127.0.0.1/8: it is not one":          {Parent: host("127.0.0.1/8")},
		"10.7.0.50/31: it is not one":         {Parent: host("10.7.0.50/31")},
		"10.7.0.50/25 and 10.7.0.51/24":       {Parent: host("10.7.0.50/25")},
		"10.7.1.50/24 and 10.7.0.51/24":       {Parent: host("10.7.1.50/24")},
		"10.7.0.51/24: it is there twice":     {Parent: host("10.7.0.51/24")},
		"labs have addresses of 198.18.11":    {Parent: host("198.18.0.1/15")},
		"only topology pod-to-network":        {Topology: lab.TopologyPodToHost, Parent: parent},
		"link bridge: topology":               {Parent: parent, Link: "bridge"},
		"link host: topology":                 {Parent: parent, Link: lab.LinkHost},
		"link ipvlan-l3: topology":            {Parent: parent, Link: "ipvlan-l3"},
		"nat: takes":                          {Parent: parent, Link: "macvlan", NAT: true},
		"overlay vxlan":                       {Parent: parent, Link: "bridge", Overlay: lab.OverlayVXLAN},
		"wire rate and":                       {Parent: parent, WireRate: 1e9},
		"datapath ebpf":                       {Parent: parent, Link: "macvlan", Datapath: lab.DatapathEBPF},
		"via nftables: topology pod-to-netwo": {Parent: parent, Via: lab.ViaNFTables},
	} {
		t.Run(culprit, func(t *testing.T) {
			o.Name = "x"
			if o.Topology == "" {
				o.Topology = lab.TopologyPodToNetwork
			}
			if o.Link == "" {
				o.Link = "veth"
			}
			_, err := s.Up(t.Context(), o)
			var option *lab.OptionError
			if !errors.As(err, &option) || !strings.Contains(err.Error(), culprit) {
				t.Errorf("error %v, want an OptionError that names %q", err, culprit)
			}
			if _, err := os.Stat(s.Dir); !errors.Is(err, fs.ErrNotExist) {
				t.Error("something was written")
			}
		})
	}
}

// TestPodToNetworkFailed names devices that can't have others on them.
func TestPodToNetworkFailed(t *testing.T) {
	s := store(t)
	n := newNetwork(t)
	for culprit, device := range map[string]string{`"nope"`: "nope", `"lo"`: "lo"} {
		o := options(lab.Options{Topology: lab.TopologyPodToNetwork, Parent: parent, Link: "veth"})
		o.Parent.Device = device
		err := n.machine.Do(func() error {
			_, err := s.Up(t.Context(), o)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), culprit) {
			t.Errorf("%s: error is %v, want one that names %s", device, err, culprit)
		}
		if left := leftovers(t, o.Name, s.Dir); len(left) > 0 {
			t.Errorf("%s: left behind: %q", device, left)
		}
	}
}
