// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"mustang/internal/cni/record"
	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

// moved returns the configuration of a network in other subnets.
func moved(config []byte, from, to string) []byte {
	return []byte(strings.NewReplacer("10."+from+".", "10."+to+".", "fd00:"+from+":", "fd00:"+to+
		":").Replace(string(config)))
}

// elsewhere are subnets of no network here.
var elsewhere = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:1::/64")}

// TestNetworkChanges gives a network other subnets, another link mode or another bridge. While it has pods, ADD and
// RetireGateways refuse that and name them, and the pods keep their gateways. Without pods the gateways and the
// masquerading go, since the subnets may be another host's then.
func TestNetworkChanges(t *testing.T) {
	rows := [][2]string{
		{"veth", "bridge"}, {"bridge", "veth"}, {"macvlan", "veth"}, {"veth", "macvlan"}, {"bridge", "macvlan"},
		{"bridge", "bridge br-b"},
	}
	for _, mode := range modes() {
		rows = append(rows, [2]string{mode.Name(), mode.Name()})
	}
	for _, links := range rows {
		t.Run(links[0]+" to "+links[1], func(t *testing.T) {
			t.Parallel()
			newFixture(t).networkChanges(links[0], links[1], false)
		})
	}
	t.Run("both", func(t *testing.T) { newFixture(t).networkChanges("veth", "bridge", true) })
}

func (f *fixture) networkChanges(from, to string, both bool) {
	f.t.Helper()
	subnets := both || from == to
	in := func(link string) ([]byte, string) {
		link, bridge, _ := strings.Cut(link, " ")
		mode := testkit.Must(podlink.Lookup(link))(f.t)
		testkit.RequireMode(f.t, mode.Probe())
		at := device(record.Segment{Link: link, Bridge: bridge})
		if bridge != "" {
			bridge = `,"bridge":"` + bridge + `"`
		}
		return network("net", link, bridge+`,"masquerade":true`), at
	}
	before, was := in(from)
	after, is := in(to)
	second := "113"
	if subnets {
		after, second = moved(after, "113", "114"), "114"
	}
	has := func(when string, first, last bool) {
		f.t.Helper()
		text, rules := testkit.Command(f.t, f.host, "ip -o addr show"), testkit.Command(f.t, f.host, "nft list ruleset")
		for _, row := range []struct {
			device, n string
			want      bool
		}{{was, "113", first}, {is, second, last}} {
			for _, gateway := range []string{`10\.` + row.n + `\.0\.1/`, "fd00:" + row.n + "::1/"} {
				testkit.Check(f.t, regexp.MustCompile(row.device+" .*"+gateway).MatchString(text) == row.want,
					"%s: want %s at %s %t: %s", when, gateway, row.device, row.want, text)
			}
			testkit.Check(f.t, !subnets || strings.Contains(rules, "saddr 10."+row.n+".0.0/24 ") == row.want,
				"%s: %s is masqueraded %t: %s", when, row.n, !row.want, rules)
		}
	}
	p := f.pod("a", before)
	p.request.Args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0"
	f.must(f.add(p))
	has("at first", true, false)
	f.oneLine(f.add(f.pod("b", after)), "10.113.0.1/24", "10."+second+".0.1/24", "delete first shop/web-0")
	f.oneLine(f.plugin.RetireGateways(f.host, "net", elsewhere), "delete first shop/web-0")
	has("with a pod of before", true, false)
	f.reachGateways(p)
	f.checkAndDelete(p)
	q := f.added("c", after)
	has("without pods of before", false, true)
	f.reachGateways(q)
	f.checkAndDelete(q)
	f.must(f.plugin.RetireGateways(f.host, "net", elsewhere))
	has("without an ADD", false, false)
	p = f.added("d", before)
	has("in the end", true, false)
	f.reachGateways(p)
	f.checkAndDelete(p)
}

// TestManyPodsRefuse names some of many pods.
func TestManyPodsRefuse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i := range maxNames + 2 {
		f.added(fmt.Sprint("p", 10+i), network("net", "veth", `,"services":"off"`))
	}
	err := f.plugin.RetireGateways(f.host, "net", elsewhere)
	f.oneLine(err, "delete first interface eth0 of container p10, ", "p19 and 2 more")
}

// TestSubnetOfAnotherNetwork has a network leave a subnet that another one has by then, whose pods keep their gateway.
func TestSubnetOfAnotherNetwork(t *testing.T) {
	eachMode(t, func(_ *testing.T, f *fixture, mode podlink.Mode) {
		before := network("one", mode.Name(), "")
		after := moved(before, "114", "115")
		f.must(f.del(f.added("a", before)))
		p, q := f.added("b", bytes.ReplaceAll(before, []byte(`"one"`), []byte(`"two"`))), f.added("c", after)
		f.reachGateways(p, q)
		f.must(f.check(p))
		f.must(f.del(q))
		f.checkAndDelete(p)
	})
}

// TestChangeDuringAdd adds a pod of a network with new subnets while an ADD in the old subnets runs: the ADD that
// reserves its addresses first succeeds.
func TestChangeDuringAdd(t *testing.T) {
	for step, refuses := range map[string]bool{"device": false, "addresses": true} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			config := network("net", "bridge", "")
			f.must(f.del(f.added("a", config))) // the network is complete
			p, q := f.pod("p", config), f.pod("q", moved(config, "113", "114"))
			var other error
			f.plugin.After = func(now string) error {
				if now == step {
					f.plugin.After = nil
					other = f.add(q)
				}
				return nil
			}
			one := f.add(p)
			if !refuses {
				p, q, one, other = q, p, other, one
			}
			f.must(one)
			f.oneLine(other, "delete first interface eth0 of container "+p.request.ContainerID)
			f.reachGateways(p)
			f.checkAndDelete(p)
			f.must(f.add(q))
			f.reachGateways(q)
			f.checkAndDelete(q)
		})
	}
}

// TestFamilyAdded gives a network of IPv4 with a pod another family: the pods before and after have their gateways.
// Then it takes the family away.
func TestFamilyAdded(t *testing.T) {
	eachMode(t, func(_ *testing.T, f *fixture, mode podlink.Mode) {
		in := func(more string) []byte {
			return fmt.Appendf(nil,
				`{"cniVersion":"1.1.0","name":"net","type":"mustang-cni","link":%q,"parent":"uplink","services":"tc",
				"ipam":{"type":"mustang","ranges":[[{"subnet":"10.120.0.0/24"}]%s]}}`, mode.Name(), more)
		}
		p, q := f.added("a", in("")), f.added("b", in(`,[{"subnet":"fd00:120::/64"}]`))
		f.reachGateways(p, q)
		f.must(f.check(p))
		f.must(f.check(q))
		f.oneLine(f.add(f.pod("c", in(""))), "delete first")
		f.must(f.del(p))
		f.checkAndDelete(q)
	})
}

// TestSubnetsOfIPAMPlugin has an IPAM plugin assign addresses of several subnets: all pods keep their gateways, which
// go with a change after the last pod.
func TestSubnetsOfIPAMPlugin(t *testing.T) {
	eachName(t, crashModes, newFixture, func(t *testing.T, f *fixture, link string) {
		dir, path := f.newFakeIPAM()
		config := delegating(link, `{"type":"`+fakeIPAM+`"}`)
		var pods []*pod
		for i := range 3 {
			f.must(os.WriteFile(path+
				".result", fmt.Appendf(nil,
				`{"cniVersion":"1.1.0","ips":[{"address":"10.12%d.0.9/24","gateway":"10.12%[1]d.0.1"}]}`, i), 0o600))
			p := f.pod(fmt.Sprint("p", i), config)
			f.worked(f.runFor(p, "ADD", dir))
			pods = append(pods, p)
		}
		for i, p := range pods {
			f.reach(p.Namespace, f.host, netip.AddrFrom4([4]byte{10, byte(120 + i), 0, 1}))
			f.worked(f.runFor(p, "DEL", dir))
		}
		f.must(f.plugin.RetireGateways(f.host, "net", elsewhere))
		text := testkit.Command(t, f.host, "ip -o addr show")
		testkit.Check(t, !strings.Contains(text, " 10.12"), "a gateway is there still: %s", text)
	})
}

// TestAddressesOfTheHost has a network leave a subnet in which the host had addresses before: these stay. What the
// network has added goes.
func TestAddressesOfTheHost(t *testing.T) {
	for _, c := range []struct{ name, link, device, more, address, gateway, address6, gateway6 string }{
		{"lo", "veth", "lo", "", "10.113.0.1/32", "", "fd00:113::1/128", ""},
		{"bridge", "bridge", "br0", `,"bridge":"br0"`, "10.113.0.1/24", "", "fd00:113::1/64", ""},
		{"another address", "bridge", "br0", `,"bridge":"br0"`, "10.113.0.5/24", "10.113.0.1/24", "fd00:113::5/64",
			"fd00:113::1/64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if c.device != "lo" {
				testkit.Command(t, f.host, "ip link add br0 type bridge")
			}
			testkit.Command(t, f.host, "ip link set "+c.device+" up")
			testkit.Command(t, f.host, "ip addr add "+c.address+" dev "+c.device)
			testkit.Command(t, f.host, "ip addr add "+c.address6+" dev "+c.device)
			before := network("net", c.link, c.more)
			p := f.added("a", before)
			for i := range 2 {
				f.reach(p.Namespace, f.host, gateway(p, i))
			}
			f.must(f.del(p))
			f.must(f.del(f.added("b", moved(before, "113", "114"))))
			text := testkit.Command(t, f.host, "ip -o addr show dev "+c.device)
			for _, address := range []string{c.address, c.address6} {
				testkit.Check(t, strings.Contains(text, " "+address+" "), "%s of the host is gone: %s", address, text)
			}
			for _, address := range []string{c.gateway, c.gateway6} {
				testkit.Check(t, address == "" || !strings.Contains(text, " "+address+" "), "%s is there still: %s", address, text)
			}
		})
	}
}

// TestRemoveNetworks removes networks at bridges: the plugin's bridges go, and the host's bridges stay as they were.
func TestRemoveNetworks(t *testing.T) {
	for _, c := range []struct {
		name, bridge string
		before       string // of the bridge; empty if there is none
		after        func(t *testing.T, f *fixture)
		stays        bool
	}{
		{name: "of the plugin", bridge: "br0"},
		{name: "of the plugin, with its name", bridge: "mst0"},
		{name: "of the host", bridge: "br0", before: "10.113.0.5/24", stays: true},
		{name: "of the host, with the plugin's name", bridge: "mst0", before: "10.113.0.5/24", stays: true},
		{name: "of the host, by whom it was created anew", bridge: "br0", stays: true, after: func(t *testing.T, f *fixture) {
			testkit.Command(t, f.host, "ip link del br0")
			testkit.Command(t, f.host, "ip link add br0 type bridge")
			f.must(f.del(f.added("c", network("net", "bridge", `,"bridge":"br0"`))))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if c.before != "" {
				testkit.Command(t, f.host, "ip link add "+c.bridge+" type bridge")
				testkit.Command(t, f.host, "ip link set "+c.bridge+" up")
				testkit.Command(t, f.host, "ip addr add "+c.before+" dev "+c.bridge)
			}
			config := network("net", "bridge", `,"bridge":"`+c.bridge+`"`)
			f.must(f.del(f.added("a", config)))
			f.must(f.del(f.added("b", bytes.ReplaceAll(config, []byte(`"net"`), []byte(`"one"`))))) // it shares the bridge
			if c.after != nil {
				c.after(t, f)
			}
			f.must(f.plugin.RemoveNetworks(f.host))
			text := testkit.Command(t, f.host, "ip -o addr show")
			testkit.Check(t, strings.Contains(testkit.Command(t, f.host, "ip -o link"), ": "+c.bridge+":") == c.stays,
				"the bridge is there %t, want %t", !c.stays, c.stays)
			testkit.Check(t, c.before == "" || strings.Contains(text, " "+c.before+" "),
				"%s of the host is gone: %s", c.before, text)
			testkit.Check(t, c.before == "" || !strings.Contains(text, " 10.113.0.1/24 "),
				"the gateway is there still: %s", text)
		})
	}
}

// TestCheckAfterLinkChange gives a network another link mode for which the host routes too, while it has a pod: CHECK
// accepts the pod, with its old configuration and with the new one, and reports what the pod has lost.
func TestCheckAfterLinkChange(t *testing.T) {
	t.Parallel()
	requireLink(t, "netkit")
	before, after := network("net", "veth", ""), network("net", "netkit", "")
	f := newFixture(t)
	p, q := f.added("a", before), f.added("b", after)
	f.reachGateways(p, q)
	f.must(f.check(p))
	f.must(f.check(q))
	p.request.Config = after
	f.must(f.check(p))
	testkit.Command(t, p.Namespace, "ip route del default")
	testkit.Check(t, f.check(p) != nil, "CHECK of a pod without its default route succeeds")
	f.must(f.del(p))
	f.checkAndDelete(q)
}
