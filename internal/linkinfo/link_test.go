// SPDX-License-Identifier: Apache-2.0

package linkinfo_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/linkinfo"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// ip runs lines of arguments of ip, where A and B stand for the namespaces. A
// kind of device that the kernel lacks skips the test.
func ip(t *testing.T, a, b *netns.Namespace, lines string) {
	t.Helper()
	testkit.RequireTool(t, "ip")
	for line := range strings.Lines(lines) {
		args := strings.Fields(line)
		for i, arg := range args {
			args[i] = map[string]string{"A": a.Name(), "B": b.Name()}[arg]
			if args[i] == "" {
				args[i] = arg
			}
		}
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			if strings.Contains(string(out), "Unknown device type") || strings.Contains(string(out), "not supported") {
				testkit.RequireMode(t, fmt.Errorf("ip %s: %s: %w", strings.Join(args, " "), out, errors.ErrUnsupported))
			}
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
}

func survey(t *testing.T, ns *netns.Namespace) map[string]linkinfo.Link {
	t.Helper()
	census := testkit.Must(linkinfo.Take())(t)
	defer census.Close()
	links := testkit.Must(census.Links(ns))(t)
	testkit.Check(t, slices.IsSortedFunc(links, func(x, y linkinfo.Link) int { return x.Index - y.Index }),
		"links are not sorted by index: %+v", links)
	out := map[string]linkinfo.Link{}
	for _, l := range links {
		out[l.Name] = l
	}
	return out
}

// setting returns a setting of a link; nil if it is missing.
func setting(settings []linkinfo.Setting, name string) any {
	for _, s := range settings {
		if s.Name == name {
			return s.Value
		}
	}
	return nil
}

// TestLinkKinds makes a device of each kind and mode, and checks its description.
func TestLinkKinds(t *testing.T) {
	for _, test := range []struct {
		name, add  string // device d0 in namespace A, where u0 is an uplink
		kind, mode string
		settings   map[string]any
		parent     string
	}{
		{name: "dummy", add: "-n A link add d0 type dummy", kind: "dummy"},
		{name: "macvlan-vepa", add: "-n A link add d0 link u0 type macvlan mode vepa", kind: "macvlan", mode: "vepa",
			parent: "u0"},
		{name: "macvlan-private", add: "-n A link add d0 link u0 type macvlan mode private", kind: "macvlan", mode: "private",
			parent: "u0"},
		{name: "macvlan-bridge", add: "-n A link add d0 link u0 type macvlan mode bridge", kind: "macvlan", mode: "bridge",
			parent: "u0"},
		{
			name: "ipvlan-l2", add: "-n A link add d0 link u0 type ipvlan mode l2", kind: "ipvlan", mode: "l2", parent: "u0",
			settings: map[string]any{"flag": "bridge"},
		},
		{
			name: "ipvlan-l3", add: "-n A link add d0 link u0 type ipvlan mode l3 private", kind: "ipvlan", mode: "l3",
			parent:   "u0",
			settings: map[string]any{"flag": "private"},
		},
		{
			name: "ipvlan-l3s", add: "-n A link add d0 link u0 type ipvlan mode l3s vepa", kind: "ipvlan", mode: "l3s",
			parent:   "u0",
			settings: map[string]any{"flag": "vepa"},
		},
		{
			name: "vxlan", add: "-n A link add d0 type vxlan id 42 dstport 4789 dev u0 remote 192.0.2.7 nolearning",
			kind: "vxlan", parent: "u0",
			settings: map[string]any{"id": 42, "port": 4789, "remote": "192.0.2.7", "learning": false, "external": false},
		},
		{
			name: "geneve", add: "-n A link add d0 type geneve id 43 remote 192.0.2.7", kind: "geneve",
			settings: map[string]any{"id": 43, "port": 6081, "remote": "192.0.2.7"},
		},
		{
			name: "vlan", add: "-n A link add d0 link u0 type vlan id 7", kind: "vlan", parent: "u0",
			settings: map[string]any{"id": 7, "protocol": "802.1q"},
		},
		{
			name: "tun", add: "-n A tuntap add d0 mode tun", kind: "tun", mode: "tun",
			settings: map[string]any{"persistent": true, "vnet_hdr": false, "packet_information": false, "multi_queue": false},
		},
		{
			name: "tap", add: "-n A tuntap add d0 mode tap vnet_hdr multi_queue pi", kind: "tun", mode: "tap",
			settings: map[string]any{"persistent": true, "vnet_hdr": true, "packet_information": true, "multi_queue": true},
		},
		{
			name: "bridge", add: "-n A link add d0 type bridge stp_state 1 forward_delay 400 mcast_snooping 0", kind: "bridge",
			settings: map[string]any{"stp": true, "forward_delay_ms": 4000, "vlan_filtering": false, "mcast_snooping": false},
		},
		{
			name: "bridge-vlans", add: "-n A link add d0 type bridge vlan_filtering 1", kind: "bridge",
			settings: map[string]any{"stp": false, "vlan_filtering": true},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := testkit.Namespace(t, "a")
			ip(t, a, a, "-n A link add u0 type veth peer name u1\n"+test.add)
			l := survey(t, a)["d0"]
			testkit.Check(t, l.Kind == test.kind && l.Mode == test.mode,
				"kind and mode are %q and %q, want %q and %q", l.Kind, l.Mode, test.kind, test.mode)
			for name, want := range test.settings {
				got := setting(l.Settings, name)
				testkit.Check(t, got == want, "%s is %v, want %v", name, got, want)
			}
			switch {
			case test.parent == "" && l.Parent != nil:
				t.Errorf("parent is %+v, want none", l.Parent)
			case test.parent != "" && (l.Parent == nil || l.Parent.Name != test.parent || l.Parent.Namespace != nil):
				t.Errorf("parent is %+v, want %s", l.Parent, test.parent)
			}
		})
	}
}

// TestLinkNetkit makes netkit pairs, which ip may not support yet.
func TestLinkNetkit(t *testing.T) {
	for name, mode := range map[string]netlink.NetkitMode{"l2": netlink.NETKIT_MODE_L2, "l3": netlink.NETKIT_MODE_L3} {
		t.Run(name, func(t *testing.T) {
			a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
			attrs, peer := netlink.NewLinkAttrs(), netlink.NewLinkAttrs()
			attrs.Name, peer.Name, peer.Namespace = "near", "far", netlink.NsFd(b.FD())
			pair := &netlink.Netkit{LinkAttrs: attrs, Mode: mode, Policy: netlink.NETKIT_POLICY_FORWARD,
				PeerPolicy: netlink.NETKIT_POLICY_BLACKHOLE}
			pair.SetPeerAttrs(&peer)
			err := handle(t, a).LinkAdd(pair)
			if errors.Is(err, unix.EOPNOTSUPP) {
				testkit.RequireMode(t, fmt.Errorf("netkit devices: %w", err))
			}
			testkit.Succeed(t, err)
			near, far := survey(t, a)["near"], survey(t, b)["far"]
			testkit.Check(t, near.Kind == "netkit" && near.Mode == name && far.Mode == name,
				"kind is %q, modes are %q and %q", near.Kind, near.Mode, far.Mode)
			testkit.Check(t, setting(near.Settings, "primary") == true && setting(far.Settings, "primary") == false,
				"settings are %v and %v", near.Settings, far.Settings)
			if setting(near.Settings, "policy") != "forward" || setting(near.Settings, "peer_policy") != "blackhole" {
				t.Errorf("settings are %v", near.Settings)
			}
			testkit.Check(t, near.Peer != nil && near.Peer.Name == "far" && near.Peer.Namespace.Name == b.Name(),
				"peer is %+v", near.Peer)
			testkit.Check(t, far.Peer != nil && far.Peer.Name == "near" && far.Peer.Namespace.Name == a.Name(),
				"peer is %+v", far.Peer)
		})
	}
}

// TestLinkBridge looks at a bridge with a port from both ends.
func TestLinkBridge(t *testing.T) {
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	ip(t, a, b, `-n A link add br0 type bridge
		-n A link set br0 address 02:00:00:00:00:07
		-n A link add port type veth peer name eth0 netns B
		-n A link set port master br0
		-n A link set port type bridge_slave hairpin on isolated on
		-n A link set port alias uplink
		-n A link property add dev port altname port-with-a-longer-name altname second
		-n B addr add 192.0.2.1/24 dev eth0
		-n A link set port up
		-n A link set br0 up`)
	in := survey(t, a)
	id := setting(in["br0"].Settings, "id")
	testkit.Check(t, id == "8000.020000000007", "the bridge's id is %v", id)
	port := in["port"]
	if port.Master != "br0" || port.Alias != "uplink" || !slices.Equal(port.AltNames, []string{"port-with-a-longer-name",
		"second"}) || setting(port.Port, "hairpin") != true || setting(port.Port, "isolated") != true {
		t.Errorf("port is %+v", port)
	}
	testkit.Check(t, !port.Carrier && port.OperState == "lower-layer-down" && setting(port.Port, "state") == "disabled",
		"the peer is down, but the state is %q, and as a port %v", port.OperState, port.Port)
	ip(t, a, b, "-n B link set eth0 up")
	testkit.Eventually(t, 5*time.Second, func() error { // the kernel takes note by and by
		if port = survey(t, a)["port"]; !port.Carrier || !port.Up || port.OperState != "up" {
			return fmt.Errorf("the peer is up, but the state is %q", port.OperState)
		}
		return nil
	})
	testkit.Check(t, port.Port != nil && in["br0"].Port == nil,
		"port settings are %v, and the bridge's %v", port.Port, in["br0"].Port)
	eth0 := survey(t, b)["eth0"]
	if eth0.Peer == nil || eth0.Peer.Name != "port" || eth0.Peer.Master != "br0" || eth0.Peer.Namespace.Name != a.Name() {
		t.Errorf("peer is %+v", eth0.Peer)
	}
	testkit.Check(t, slices.Contains(eth0.Addrs, netip.MustParsePrefix("192.0.2.1/24")), "addresses are %v", eth0.Addrs)
}

// TestLinkNetfilterCall switches br_netfilter's call on and off, by the bridge and by its namespace.
func TestLinkNetfilterCall(t *testing.T) {
	a := testkit.Namespace(t, "a")
	const key = "net/bridge/bridge-nf-call-iptables"
	if _, err := rtnl.In(a).Sysctl(key); err != nil {
		testkit.RequireMode(t, fmt.Errorf("br_netfilter: %w: %w", errors.ErrUnsupported, err))
	}
	ip(t, a, a, "-n A link add br0 type bridge nf_call_iptables 0")
	for _, test := range []struct {
		own, all string
		want     bool
	}{{"0", "0", false}, {"1", "0", true}, {"0", "1", true}} {
		ip(t, a, a, "-n A link set br0 type bridge nf_call_iptables "+test.own)
		testkit.Succeed(t, rtnl.In(a).SetSysctl(key, test.all))
		got := setting(survey(t, a)["br0"].Settings, "nf_call_iptables")
		testkit.Check(t, got == test.want, "the bridge says %s and the namespace %s: %v", test.own, test.all, got)
	}
}

// TestLinkHardware reads the same settings as ethtool, and switches an offload off.
func TestLinkHardware(t *testing.T) {
	testkit.RequireTool(t, "ethtool")
	a := testkit.Namespace(t, "a")
	ip(t, a, a, `-n A link add v0 numtxqueues 3 numrxqueues 2 type veth peer name v1
		-n A link add br0 type bridge`)
	before := survey(t, a)
	if v := before["v0"]; v.Hardware.Speed != 10000 || v.Hardware.Duplex != "full" || v.Hardware.Driver != "veth" ||
		!v.Hardware.Offloads["tso"] || v.TxQueues != 3 || v.RxQueues != 2 {
		t.Errorf("veth: %+v", v)
	}
	speed := before["br0"].Hardware.Speed
	testkit.Check(t, speed == linkinfo.SpeedUnknown, "a bridge without ports has speed %d", speed)
	speed = before["lo"].Hardware.Speed
	testkit.Check(t, speed == 0, "a loopback device has speed %d", speed)
	cmd := exec.Command("ethtool", "-K", "v0", "tso", "off", "tx", "off")
	testkit.Succeed(t, a.Start(cmd))
	testkit.Succeed(t, cmd.Wait())
	after := survey(t, a)["v0"].Hardware.Offloads
	on, has := after["tso"]
	testkit.Check(t, !on && has, "tso was switched off, but offloads are %v", after)
	on, has = after["tx-checksum"]
	testkit.Check(t, !on && has, "checksums were switched off, but offloads are %v", after)
}

// handle opens a netlink socket in ns, until the test is over.
func handle(t *testing.T, ns *netns.Namespace) *netlink.Handle {
	t.Helper()
	h := testkit.Must(rtnl.In(ns).Handle())(t)
	t.Cleanup(h.Close)
	return h
}
